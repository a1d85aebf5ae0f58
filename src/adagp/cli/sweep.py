"""`adagp sweep`: many models, data sets, dataflows, arrays and designs, to CSV."""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TextIO

from adagp.cli.options import OUTPUT, option
from adagp.cli.simulated_runs import EPOCHS, BatchSize, RunOptions
from adagp.core.escape import shown
from adagp.core.files import check_output_file, publish
from adagp.errors import OptionError
from adagp.hw import Accelerator, Simulation, parse_array
from adagp.hw import simulate as run_simulation
from adagp.hw.dataflows import check_size
from adagp.hw.settings import setting_options, with_settings
from adagp.hw.simulate import parse_designs
from adagp.models import MODELS
from adagp.program.figures.accelerator import plot_speedups
from adagp.program.figures.style import check_picture_path
from adagp.program.workloads import PAPER_MODELS, Origin, dataset_info, model_workload

_GRID = "What is swept over"


@dataclass(frozen=True)
class SweepRow:
    """One line of the CSV file."""

    model: str
    dataset: str
    dataflow: str
    array: str
    design: str
    batch: int
    epochs: int
    cycles: int
    seconds: float
    speedup: float
    energy_joules: float
    energy_saving: float
    memory_energy_saving: float
    dram_bytes: int
    backward_to_forward: float


@dataclass(frozen=True)
class Grid:
    """What is to be swept over."""

    models: tuple[str, ...]
    datasets: tuple[str, ...]
    accelerators: tuple[Accelerator, ...]
    designs: tuple[str, ...]

    @property
    def simulations(self) -> int:
        """Simulations in the sweep; each covers all designs."""
        return len(self.models) * len(self.datasets) * len(self.accelerators)


ACCELERATOR_OPTIONS = setting_options("bandwidth", "predictor", "backward", "buffer_port", "zero_insertion")


def sweep(
    *,
    models: Annotated[str, option("Model names, separated by commas.", panel=_GRID)] = ",".join(PAPER_MODELS),
    datasets: Annotated[str, option("Data sets.", panel=_GRID)] = "cifar10,cifar100,imagenet",
    dataflows: Annotated[str, option("Dataflows.", panel=_GRID)] = "ws,os,is,rs",
    arrays: Annotated[str, option("Arrays, ROWSxCOLUMNS.", panel=_GRID, also=check_size)] = "12x15",
    designs: Annotated[str, option("Designs, or all.", panel=_GRID)] = "all",
    batch: BatchSize = None,
    plan: RunOptions,
    given: Mapping[str, Any],
    out: Annotated[
        Path | None, option("CSV file.", panel=OUTPUT, unset="standard output", also=check_output_file)
    ] = None,
    plot: Annotated[
        Path | None,
        option(
            "Picture (.svg or .png) of the speed-ups on the first data set, dataflow and array.",
            panel=OUTPUT,
            unset="none",
            also=check_picture_path,
        ),
    ] = None,
) -> None:
    """Simulate every combination and write a row for each design."""
    base = with_settings(Accelerator(), given)
    grid = Grid(
        models=_names(models, "models"),
        datasets=_names(datasets, "datasets"),
        accelerators=tuple(
            replace(base, array=parse_array(array), dataflow=dataflow)
            for array in _names(arrays, "arrays")
            for dataflow in _names(dataflows, "dataflows")
        ),
        designs=parse_designs(designs),
    )
    for name in grid.datasets:
        dataset_info(name)
    for name in grid.models:
        if ":" not in name:
            MODELS[name]
    plan.schedule(plan.epochs or EPOCHS)
    rows = list(_with_progress(grid, plan, batch))
    if out is None:
        write_rows(rows, sys.stdout)
    else:
        text = StringIO()
        write_rows(rows, text)
        publish(out, text.getvalue().encode("utf-8", "backslashreplace"))
    if plot is not None:
        _plot(rows, plot)


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError(f"--{option} is empty; give at least one name.")
    return names


def _with_progress(grid: Grid, plan: RunOptions, batch: int | None) -> Iterator[SweepRow]:
    from rich.markup import escape
    from rich.progress import Progress

    from adagp.cli.terminal import Terminal

    with Progress(console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=grid.simulations)
        for model in grid.models:
            for dataset in grid.datasets:
                progress.update(task, description=escape(shown(f"{model} on {dataset}")))
                origin = Origin(cache(partial(model_workload, model, dataset)), dataset, dataset_info(dataset).train)
                run, workload, epochs = plan.run(origin, batch), origin.workload(), plan.epochs_of(origin)
                for accelerator in grid.accelerators:
                    simulation = run_simulation(workload, accelerator, run, grid.designs)
                    yield from (_row(simulation, dataset, epochs, design) for design in simulation.outcomes)
                    progress.advance(task)


def _row(simulation: Simulation, dataset: str, epochs: int, design: str) -> SweepRow:
    outcome = simulation.outcomes[design]
    return SweepRow(
        model=simulation.workload.name,
        dataset=dataset,
        dataflow=simulation.accelerator.dataflow,
        array=str(outcome.array),
        design=design,
        batch=simulation.run.batch,
        epochs=epochs,
        cycles=outcome.cost.cycles,
        seconds=outcome.seconds,
        speedup=simulation.speedup(design),
        energy_joules=outcome.energy.joules,
        energy_saving=simulation.energy_saving(design),
        memory_energy_saving=simulation.memory_energy_saving(design),
        dram_bytes=outcome.cost.dram_bits // 8,
        backward_to_forward=simulation.backward_to_forward,
    )


def write_rows(rows: list[SweepRow], file: TextIO) -> None:
    """Write rows as CSV with a header."""
    writer = csv.writer(file, lineterminator="\n")
    names = [field.name for field in fields(SweepRow)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)


def _plot(rows: list[SweepRow], path: Path) -> None:
    first = rows[0]
    speedups: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if (row.dataset, row.dataflow, row.array) == (first.dataset, first.dataflow, first.array):
            speedups[row.model][row.design] = row.speedup
    plot_speedups(speedups, f"{first.dataset}, {first.dataflow}, {first.array} PEs", path)
