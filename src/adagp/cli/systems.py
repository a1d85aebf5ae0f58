"""`adagp simulate --design procrustes|camel|...`: a run on a training system of its own kind, by modelled time and energy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.options import option
from adagp.errors import OptionError
from adagp.hw import Workload
from adagp.hw.simulate import DESIGNS
from adagp.hw.systems import (
    SYSTEMS,
    EpochRecord,
    LayerRecord,
    SystemOptions,
    SystemOutcome,
    run_on_system,
)
from adagp.program.run.folder import to_json
from adagp.program.run.record import Epoch, RunRecord, read_whole_run

PANEL = "Other training systems"
SHARE = "above 0 and at most 1"


@dataclass(frozen=True)
class SystemSettings:
    """What concerns training systems other than ADA-GP's designs."""

    weight_density: Annotated[
        float, option("Share of weights that are not zero, without a run.", panel=PANEL, above=0, high=1, allowed=SHARE)
    ] = 0.1
    input_density: Annotated[
        float,
        option(
            "Share of inputs that are not zero, without a run; of the first layer 1.",
            panel=PANEL,
            above=0,
            high=1,
            allowed=SHARE,
        ),
    ] = 0.5
    retention: Annotated[
        float, option("Microseconds that embedded DRAM keeps a datum.", panel=PANEL, above=0, high=1e9)
    ] = SystemOptions.retention
    micro_batch: Annotated[
        int, option("Samples that pass a reversible branch together.", panel=PANEL, low=1, high=65_536)
    ] = SystemOptions.micro_batch
    target: Annotated[
        float | None, option("Accuracy of the replayed run that ends the count.", panel=PANEL, unset="none")
    ] = None


def chosen_systems(design: str) -> tuple[str, ...]:
    """Return the systems that `--design` names, none if it names ADA-GP's designs; both together are refused."""
    names = tuple(name.strip() for name in design.split(","))
    systems = [name for name in names if name in SYSTEMS]
    others = [name for name in names if name not in SYSTEMS]
    if systems and others:
        known = f"'{others[0]}' is a design of the accelerator" if others[0] in DESIGNS else f"'{others[0]}' is unknown"
        raise OptionError(
            f"--design: '{systems[0]}' is a training system of its own, {known}; give one kind, of: {', '.join(SYSTEMS)}."
        )
    return tuple(systems)


def recorded_epochs(record: RunRecord, target: float | None) -> list[EpochRecord]:
    """Return a run's epochs with what it has measured of its layers; densities that it has not are 1."""
    if target is not None:
        record.metric.check_target(target)

    def epoch(one: Epoch) -> EpochRecord:
        reached = target is not None and record.metric.reaches(one.test_value, target)
        layers = {
            name: LayerRecord(_known(figures.get("weight_density")), _known(figures.get("input_density")))
            for name, figures in one.sites.items()
        }
        return EpochRecord(one.batches.get("bp", 0), one.batches.get("gp", 0), layers, reached)

    return [epoch(one) for one in record.epochs]


def _known(value: float | None) -> float:
    return 1.0 if value is None or value <= 0 else min(1.0, value)


def assumed_epochs(workload: Workload, batches: int, settings: SystemSettings) -> list[EpochRecord]:
    """Return one long epoch by backprop with the densities that are assumed."""
    layers = {
        layer.name: LayerRecord(settings.weight_density, settings.input_density if place else 1.0)
        for place, layer in enumerate(workload.array_layers)
    }
    return [EpochRecord(batches, 0, layers)]


def simulate_systems(
    names: Sequence[str],
    workload: Workload,
    batch: int,
    batches: int,
    run: Path | None,
    settings: SystemSettings,
    *,
    as_json: bool,
) -> None:
    """Cost a run on each system and print it."""
    if settings.target is not None and run is None:
        raise OptionError("--target is an accuracy of a run that is replayed; give --from-run.")
    record = None if run is None else read_whole_run(run, "replay")
    epochs = assumed_epochs(workload, batches, settings) if record is None else recorded_epochs(record, settings.target)
    options = SystemOptions(settings.retention, settings.micro_batch)
    outcomes = {name: run_on_system(name, workload, batch, epochs, options) for name in names}
    rows = {name: outcome_row(one, settings.target) for name, one in outcomes.items()}
    if as_json:
        typer.echo(to_json({"model": workload.name, "batch": batch, "modelled": rows}, indent=2))
        return
    _print(workload.name, rows)


def outcome_row(outcome: SystemOutcome, target: float | None) -> dict[str, Any]:
    """Return what is told of a run on a system; all of it is modelled."""
    row: dict[str, Any] = {
        "cycles": outcome.total.cycles,
        "seconds": outcome.seconds,
        "joules": outcome.total.joules,
        "cycles_per_batch": outcome.batch.batch().cycles,
        "joules_per_batch": outcome.batch.batch().joules,
    }
    if target is not None:
        found = outcome.to_target
        reached = None if found is None else {"cycles": found.cycles, "joules": found.joules}
        row["to_target"] = reached or "not reached"
    return row | {"notes": dict(outcome.batch.notes)}


def _print(model: str, rows: dict[str, dict[str, Any]]) -> None:
    from rich.table import Table

    from adagp.cli.terminal import Terminal

    console = Terminal()
    table = Table(title=f"{model}: modelled, not measured", title_justify="left")
    columns = ("cycles", "seconds", "joules", "cycles_per_batch", "joules_per_batch")
    for column in ("system", *columns):
        table.add_column(column.replace("_", " "), justify="left" if column == "system" else "right")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.4g}" for column in columns))
    console.print(table)
    for name, row in rows.items():
        for what, value in row["notes"].items():
            console.print(
                f"{name}: {what}: {value if isinstance(value, str) else format(value, '.4g')}", highlight=False
            )
        if "to_target" in row:
            reached = row["to_target"]
            words = (
                reached
                if isinstance(reached, str)
                else f"{reached['cycles']:.4g} cycles, {reached['joules']:.4g} joules"
            )
            console.print(f"{name}: to the target: {words}", highlight=False)
