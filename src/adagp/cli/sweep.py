"""`adagp sweep`: many models, data sets, dataflows, arrays and designs, to CSV."""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from io import StringIO
from math import inf
from pathlib import Path
from typing import Annotated, TextIO

from adagp.cli.options import option, switch
from adagp.cli.simulate import BATCH, EPOCHS, RunOptions, parse_designs
from adagp.cli.workloads import Origin
from adagp.errors import OptionError
from adagp.figures.accelerator import plot_speedups
from adagp.figures.style import check_picture_path
from adagp.files import publish
from adagp.hw import Accelerator, Array, Simulation, Workload, parse_array, parse_predictor
from adagp.hw import simulate as run_simulation
from adagp.models import MODELS
from adagp.shown import shown
from adagp.workloads import PAPER_MODELS, dataset_info, model_workload


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


def sweep(
    models: Annotated[str, option("Model names, separated by commas.")] = ",".join(PAPER_MODELS),
    datasets: Annotated[str, option("Data sets.")] = "cifar10,cifar100,imagenet",
    dataflows: Annotated[str, option("Dataflows.")] = "ws,os,is,rs",
    arrays: Annotated[str, option("Arrays, ROWSxCOLUMNS.")] = "12x15",
    designs: Annotated[str, option("Designs, or all.")] = "all",
    batch: Annotated[int, option("Samples per batch.")] = BATCH,
    epochs: Annotated[int, option("Epochs of each run.")] = EPOCHS,
    ratio: Annotated[str, option("Schedule, in the forms of adagp train, but for adaptive ones.")] = "ladder",
    warmup: Annotated[int | None, option("Epochs of warm-up.", unset="the schedule's own")] = None,
    bandwidth: Annotated[float, option("Off-chip gigabytes per second; inf: never stalls.")] = 12.8,
    predictor: Annotated[str, option("Predictor, GRIDxCHANNELS.")] = "4x4",
    backward: Annotated[str, option("Gradients: in-place or same-dataflow.")] = "in-place",
    buffer_port: Annotated[float, option("Bits per cycle through the buffer's port; inf: no limit.")] = inf,
    zero_insertion: Annotated[
        bool, switch("--zero-insertion", "Run gradients of strided convolutions over zeros.")
    ] = False,
    out: Annotated[Path | None, option("CSV file.", unset="standard output")] = None,
    plot: Annotated[
        Path | None,
        option("Picture (.svg or .png) of the speed-ups on the first data set, dataflow and array.", unset="none"),
    ] = None,
) -> None:
    """Simulate every combination and write a row for each design."""
    grid = Grid(
        models=_names(models, "models"),
        datasets=_names(datasets, "datasets"),
        accelerators=tuple(
            Accelerator(
                array=array,
                dataflow=dataflow,
                bandwidth=bandwidth * 1e9,
                zero_insertion=zero_insertion,
                predictor=parse_predictor(predictor),
                backward=backward,
                buffer_port=buffer_port,
            )
            for array in _arrays(arrays)
            for dataflow in _names(dataflows, "dataflows")
        ),
        designs=parse_designs(designs),
    )
    for name in grid.datasets:
        dataset_info(name)
    for name in grid.models:
        if ":" not in name:
            MODELS[name]
    if plot is not None:
        check_picture_path(plot)
    options = RunOptions(batch, epochs, None, ratio, warmup)
    options.schedule(epochs)
    rows = list(_with_progress(grid, options))
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


def _arrays(text: str) -> list[Array]:
    return [parse_array(name) for name in _names(text, "arrays")]


def _with_progress(grid: Grid, options: RunOptions) -> Iterator[SweepRow]:
    from rich.markup import escape
    from rich.progress import Progress

    from adagp.cli.terminal import Terminal

    with Progress(console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=grid.simulations)
        for model in grid.models:
            for dataset in grid.datasets:
                progress.update(task, description=escape(shown(f"{model} on {dataset}")))
                workload = model_workload(model, dataset)
                for accelerator in grid.accelerators:
                    yield from sweep_rows(workload, dataset, accelerator, grid.designs, options)
                    progress.advance(task)


def sweep_rows(
    workload: Workload, dataset: str, accelerator: Accelerator, designs: tuple[str, ...], options: RunOptions
) -> list[SweepRow]:
    """Return the rows of one simulation."""
    origin = Origin(lambda: workload, dataset, dataset_info(dataset).train)
    simulation = run_simulation(workload, accelerator, options.run(origin), designs)
    return [_row(simulation, dataset, options.epochs_of(origin), design) for design in simulation.outcomes]


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
