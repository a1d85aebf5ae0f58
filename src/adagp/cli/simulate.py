"""`adagp simulate`: cycles, time and energy of a training run on a modelled accelerator, or on another training system."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.memory import MemorySettings, model_memory
from adagp.cli.options import NAMES, OUTPUT, SYSTEM_NAMES, Json, Picture, offer
from adagp.cli.simulation_options import (
    MODEL,
    RUN,
    BatchSize,
    FromRtl,
    HardwareFile,
    ManyChipOptions,
    PresetName,
    RunOptions,
    SampleOptions,
    chosen_hardware,
)
from adagp.core.files import check_output_file, publish
from adagp.core.methods import find_source
from adagp.core.options import Option, option, switch
from adagp.errors import OptionError
from adagp.hw import Accelerator, Workload
from adagp.hw import simulate as run_simulation
from adagp.hw.export import EXPORTERS, check_export, export_workload
from adagp.hw.report import DESIGN_COLUMNS, design_heading, design_notes, design_row, layer_rows, simulation_report
from adagp.hw.rtl_results import with_rtl
from adagp.hw.settings import PANEL, SETTINGS, with_settings
from adagp.hw.simulate import DESIGNS, Simulation, parse_designs
from adagp.hw.systems import SYSTEMS, EpochRecord, LayerRecord, SystemOptions, SystemOutcome, run_on_system
from adagp.program.figures.accelerator import plot_simulation
from adagp.program.run.folder import flat_csv, to_json
from adagp.program.run.record import Epoch, RunRecord, read_whole_run
from adagp.program.workloads import FILES

SYSTEMS_PANEL = "Other training systems"
SHARE = "above 0 and at most 1"


@dataclass(frozen=True)
class SystemSettings:
    """Options for training systems other than ADA-GP's designs."""

    weight_density: Annotated[
        float,
        option(
            "Fraction of nonzero weights, if no run is replayed.", panel=SYSTEMS_PANEL, above=0, high=1, allowed=SHARE
        ),
    ] = 0.1
    input_density: Annotated[
        float,
        option(
            "Fraction of nonzero inputs, if no run is replayed; 1 for the first layer.",
            panel=SYSTEMS_PANEL,
            above=0,
            high=1,
            allowed=SHARE,
        ),
    ] = 0.5
    retention: Annotated[
        float, option("Retention time of embedded DRAM in microseconds.", panel=SYSTEMS_PANEL, above=0, high=1e9)
    ] = SystemOptions.retention
    micro_batch: Annotated[
        int, option("Samples per micro-batch of a reversible branch.", panel=SYSTEMS_PANEL, low=1, high=65_536)
    ] = SystemOptions.micro_batch
    target: Annotated[
        float | None,
        option(
            "Count cycles and energy of the replayed run until it reaches this accuracy.",
            panel=SYSTEMS_PANEL,
            unset="none",
        ),
    ] = None


def chosen_systems(design: str) -> tuple[str, ...]:
    """Return the training systems that `--design` names; none if it names ADA-GP's designs. A mixture is an error."""
    names = tuple(name.strip() for name in design.split(","))
    systems = [name for name in names if name in SYSTEMS]
    others = [name for name in names if name not in SYSTEMS]
    if systems and others:
        known = f"'{others[0]}' is a design of the accelerator" if others[0] in DESIGNS else f"'{others[0]}' is unknown"
        raise OptionError(
            f"--design: '{systems[0]}' is a training system, {known}; give only one kind. "
            f"Training systems: {', '.join(SYSTEMS)}."
        )
    return tuple(systems)


def recorded_epochs(record: RunRecord, target: float | None) -> list[EpochRecord]:
    """Return a run's epochs with the measured densities of its layers; densities that were not measured are 1."""
    if target is not None:
        record.metric.check_target(target)

    def epoch(recorded: Epoch) -> EpochRecord:
        reached = target is not None and record.metric.reaches(recorded.test_value, target)
        layers = {
            name: LayerRecord(_known(figures.get("weight_density")), _known(figures.get("input_density")))
            for name, figures in recorded.sites.items()
        }
        return EpochRecord(recorded.batches.get("bp", 0), recorded.batches.get("gp", 0), layers, reached)

    return [epoch(recorded) for recorded in record.epochs]


def _known(value: float | None) -> float:
    return 1.0 if value is None or value <= 0 else min(1.0, value)


def assumed_epochs(workload: Workload, batches: int, settings: SystemSettings) -> list[EpochRecord]:
    """Return one long epoch by backprop with the assumed densities."""
    layers = {
        layer.name: LayerRecord(settings.weight_density, settings.input_density if index else 1.0)
        for index, layer in enumerate(workload.array_layers)
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
    """Model a run on each system and print its cost."""
    if settings.target is not None and run is None:
        raise OptionError("--target is for a replayed run; give --from-run.")
    record = None if run is None else read_whole_run(run, "replay")
    epochs = assumed_epochs(workload, batches, settings) if record is None else recorded_epochs(record, settings.target)
    options = SystemOptions(settings.retention, settings.micro_batch)
    outcomes = {name: run_on_system(name, workload, batch, epochs, options) for name in names}
    rows = {name: outcome_row(outcome, settings.target) for name, outcome in outcomes.items()}
    if as_json:
        typer.echo(to_json({"model": workload.name, "batch": batch, "modelled": rows}, indent=2))
        return
    _print(workload.name, rows)


def outcome_row(outcome: SystemOutcome, target: float | None) -> dict[str, Any]:
    """Return the report of a run on a system; all of it is modelled."""
    row: dict[str, Any] = {
        "cycles": outcome.total.cycles,
        "seconds": outcome.seconds,
        "joules": outcome.total.joules,
        "cycles_per_batch": outcome.batch.batch().cycles,
        "joules_per_batch": outcome.batch.batch().joules,
    }
    if target is not None:
        cost = outcome.to_target
        reached = None if cost is None else {"cycles": cost.cycles, "joules": cost.joules}
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


def more_options(command: str) -> Sequence[Option]:
    """Return the options of accelerators."""
    return tuple(SETTINGS.values())


def simulate(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Model name, timm:NAME, torchvision:NAME, hf:FILE.json, package.module:function, "
            f"a {FILES}, or a run folder.",
            rich_help_panel=MODEL,
            autocompletion=offer(NAMES["model"]),
        ),
    ] = None,
    data: SampleOptions,
    batch: BatchSize = None,
    plan: RunOptions,
    from_run: Annotated[
        Path | None, option("Replay the phases recorded in this run folder.", panel=RUN, unset="none")
    ] = None,
    trust: Annotated[
        bool, switch("--trust", "Allow the user code that is named in the folder of --from-run to run.", panel=RUN)
    ] = False,
    design: Annotated[
        str,
        option(
            f"all (of ADA-GP's), or some of {', '.join(DESIGNS)}, separated by commas. Or other training systems: "
            f"{SYSTEM_NAMES}.",
            panel=PANEL,
        ),
    ] = "all",
    systems: SystemSettings,
    preset: PresetName = None,
    hardware: HardwareFile = None,
    from_rtl: FromRtl = None,
    overrides: Mapping[str, Any],
    many: ManyChipOptions,
    step: MemorySettings,
    per_layer: Annotated[bool, switch("--per-layer", "Print a row for each layer.", panel=OUTPUT)] = False,
    as_json: Json = False,
    layers_csv: Annotated[
        Path | None,
        option("Write a row for each layer to FILE.csv.", "--csv", panel=OUTPUT, unset="none", also=check_output_file),
    ] = None,
    plot: Picture = None,
    save_workload: Annotated[
        Path | None,
        option("Save the traced layers to this file as JSON.", panel=OUTPUT, unset="none", also=check_output_file),
    ] = None,
    export: Annotated[
        str | None,
        option(
            f"Export the matrix products of a batch for another simulator: {', '.join(EXPORTERS)}.",
            panel=OUTPUT,
            unset="none",
        ),
    ] = None,
    out: Annotated[Path | None, option("New output folder for --export.", panel=OUTPUT, unset="none")] = None,
) -> None:
    """Model cycles, speed-up and energy of a training run on an accelerator, for each of ADA-GP's designs."""
    chip = chosen_hardware(preset, hardware)
    base = Accelerator() if chip is None else chip.applied(Accelerator())
    accelerator = with_settings(with_rtl(base, from_rtl or ()), overrides)
    others = chosen_systems(design)
    about_one = {"--per-layer": per_layer, "--csv": layers_csv is not None, "--export": export is not None}
    many.check(about_one | {f"--design {design}": bool(others)})
    step.check(
        about_one
        | {
            "--chips": many.chips is not None,
            "--design": design != "all",
            "--save-workload": save_workload is not None,
        }
    )
    designs = () if others else parse_designs(design)
    if export is not None or out is not None:
        check_export(export, out)
    origin = data.origin(model, from_run, method=plan.method, trust=trust, target=None if others else systems.target)
    run = plan.run(origin, batch)
    if others:
        folder = from_run or (Path(model) if model is not None and origin.replay is not None else None)
        simulate_systems(others, origin.workload(), run.batch, run.batches, folder, systems, as_json=as_json)
        return
    if many.chips is not None:
        from adagp.cli.chips import chip_training, chosen_design, simulate_chips

        workload = origin.workload()
        many = many.with_links_of(chip)
        training = chip_training(workload, accelerator, run, plan.method, chosen_design(design), many)
        simulate_chips(training, run, many, plot=plot, as_json=as_json)
        if save_workload is not None:
            workload.save(save_workload)
        return
    if step.memory:
        source = find_source(plan.method).source
        model_memory(origin.workload(), accelerator, run, source, step, plot=plot, as_json=as_json)
        return
    simulation = run_simulation(origin.workload(), accelerator, run, designs)
    _write_files(simulation, plot=plot, layers_csv=layers_csv, save_workload=save_workload)
    if export is not None and out is not None:
        files = export_workload(export, simulation.workload, accelerator, run.batch, out)
        typer.echo(f"exported {len(files)} files for {export} to {out}", err=True)
    report = {"dataset": origin.dataset, "epochs": plan.epochs_of(origin), **simulation_report(simulation, per_layer)}
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_tables(report)


def _write_files(
    simulation: Simulation, *, plot: Path | None, layers_csv: Path | None, save_workload: Path | None
) -> None:
    if save_workload is not None:
        simulation.workload.save(save_workload)
    if plot is not None:
        plot_simulation(simulation, plot)
    if layers_csv is not None:
        publish(layers_csv, flat_csv(layer_rows(simulation)).encode())


def print_tables(report: dict[str, Any]) -> None:
    """Print a row for each design and, if the report has them, for each layer."""
    from adagp.cli.terminal import Terminal, table_of

    console = Terminal()
    designs = starmap(design_row, report["designs"].items())
    console.print(table_of(DESIGN_COLUMNS, designs, title=design_heading(report), title_justify="left"))
    for note in design_notes(report):
        console.print(note, highlight=False)
    for title, columns, row_of in LAYER_TABLES if "layers" in report else ():
        rows = map(row_of, report["layers"])
        console.print(table_of(columns, rows, ("by",), title=title, title_justify="left", **_lines(console.width)))


def _cycles_row(row: dict[str, Any]) -> Sequence[str]:
    names = ("forward", "input_gradient", "weight_gradient", "predictor")
    cycles = (_thousands(row[f"{name}_cycles"]) for name in names)
    return (row["name"], _thousands(row["macs"]), *cycles, f"{row['utilisation']:.1%}")


def _thousands(number: int) -> str:
    """Return a count in thousands, with one decimal if it is below 100,000."""
    return f"{number / 1000:,.0f}" if number >= 100_000 else f"{number / 1000:.1f}"


def _traffic_row(row: dict[str, Any]) -> Sequence[str]:
    levels = (f"{row[f'{name}_bytes'] / 1e6:,.1f}" for name in ("dram", "buffer", "register"))
    return (row["name"], *levels, f"{row['stall_cycles']:,}", row["stall_cause"], f"{row['joules']:.3g}")


LAYER_TABLES = (
    (
        "One batch, layer by layer (MACs and cycles in thousands)",
        ("layer", "MACs", "forward", "input gradient", "weight gradient", "predictor", "utilisation"),
        _cycles_row,
    ),
    (
        "One batch by backprop, layer by layer (traffic)",
        ("layer", "off-chip MB", "buffer MB", "register MB", "stalled cycles", "by", "joules"),
        _traffic_row,
    ),
)
ROOMY = 100
"""The width of a terminal, in characters, from which the tables of layers have a frame."""


def _lines(width: int) -> dict[str, Any]:
    return {} if width >= ROOMY else {"box": None, "padding": (0, 2, 0, 0)}
