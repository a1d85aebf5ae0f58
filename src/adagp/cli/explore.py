"""`adagp explore`: the Pareto front of a design space of accelerators, or all of its points; `adagp sweep`, its older form."""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.options import NAMES, OUTPUT, Json, Picture, offer
from adagp.cli.simulation_options import (
    EPOCHS,
    BatchSize,
    FromRtl,
    HardwareFile,
    PresetName,
    RunOptions,
    SampleOptions,
    chosen_hardware,
)
from adagp.core.escape import escaped
from adagp.core.files import check_output_file, publish
from adagp.core.options import Option, option, switch
from adagp.errors import OptionError
from adagp.hw import Accelerator, Simulation, parse_array
from adagp.hw import simulate as run_simulation
from adagp.hw.axes import AXES, parse_axes, parse_variations
from adagp.hw.dataflows import check_size
from adagp.hw.explore import OBJECTIVES, Labels, Point, Space, accelerators, axis_values, parse_objectives, varied
from adagp.hw.explore import explore as explore_space
from adagp.hw.hardware_file import SET_BY_OPTIONS, Hardware
from adagp.hw.rtl_results import with_rtl
from adagp.hw.settings import SETTINGS, with_settings
from adagp.hw.simulate import parse_designs
from adagp.models import MODELS
from adagp.program.figures.accelerator import plot_speedups
from adagp.program.figures.style import check_picture_path
from adagp.program.jobs import usable_cores
from adagp.program.workloads import dataset_info

SWEPT_MODELS = (
    *("resnet50", "resnet101", "resnet152", "inception_v4", "inception_v3", "vgg13", "vgg16", "vgg19"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "mobilenet_v2"),
)
"""The default of `adagp sweep`: the CNNs of ADA-GP's evaluation, named here because its folder may be missing."""
_SPACE = "Design space"
SHOWN = 40
"""The most rows of the front that are printed; files have all of them."""

AXIS_OPTIONS = tuple(
    Option(
        axis.name,
        str,
        axis.default,
        axis.help,
        optional=axis.default is None,
        unset="the accelerator's",
        panel=_SPACE,
        flags=(axis.flag, axis.short) if axis.short else (),
    )
    for axis in AXES
)


def explore(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="As for simulate: name, package.module:function, file or run folder. With --rows: several, "
            "separated by commas.",
            autocompletion=offer(NAMES["model"]),
        ),
    ],
    data: SampleOptions,
    plan: RunOptions,
    preset: PresetName = None,
    from_rtl: FromRtl = None,
    hardware: HardwareFile = None,
    vary: Annotated[
        list[str] | None,
        option(
            "Vary a field of a hardware file: vector.lanes=16..256. Repeatable.", "--vary", panel=_SPACE, unset="none"
        ),
    ] = None,
    overrides: Mapping[str, Any],
    objective: Annotated[
        str, option(f"What to minimise: some of {', '.join(OBJECTIVES)}.", panel=_SPACE)
    ] = "cycles,energy,area",
    rows: Annotated[
        bool,
        switch(
            "--rows",
            "Print every point as a CSV row instead of the front; MODEL and --dataset may be comma-separated lists.",
            panel=OUTPUT,
        ),
    ] = False,
    workers: Annotated[
        int | None,
        option(
            "Number of processes.", panel=OUTPUT, unset="one per CPU core", low=1, high=256, allowed="from 1 to 256"
        ),
    ] = None,
    out: Annotated[
        Path | None, option("Write all points to FILE.csv.", panel=OUTPUT, unset="none", also=check_output_file)
    ] = None,
    force: Annotated[bool, switch("--force", "Overwrite FILE.csv.", panel=OUTPUT)] = False,
    plot: Picture = None,
    as_json: Json = False,
) -> None:
    """Simulate every point of a design space and print its Pareto front. Axes: lists, A..B (doubling), A..B:+STEP."""
    chip = chosen_hardware(preset, hardware) or Hardware("", {})
    variations = parse_variations(vary or ())
    overrides = {**overrides, **varied_axes(variations, overrides, vary or ())}
    values = parse_axes(axis_texts(overrides, chip))
    base = with_rtl(chip.applied(Accelerator()), from_rtl or ())
    objectives = parse_objectives(objective)
    _check_output(out, force, plot, objectives)
    machines = accelerators(base, values)  # raises if one cannot be built
    labels = varied(machines, chip, variations) if variations else {}
    machines = tuple(labels) or machines
    if rows:
        batches = tuple(values["batch"]) if "batch" in overrides else (None,)
        grid = Grid(
            _names(model, "MODEL"),
            _names(data.dataset, "--dataset"),
            machines,
            batches,
            tuple(values["design"]),
            labels,
        )
        _write_grid(grid, data, plan, None, out, plot, as_json=as_json)
        return
    origin = data.origin(model)
    recorded = origin.replay is not None and "batch" not in overrides
    sizes: Sequence[int | None] = (None,) if recorded else values["batch"]
    runs = tuple(plan.run(origin, batch) for batch in sizes)
    space = Space(origin.workload(), machines, runs, tuple(values["design"]), labels)
    points = _with_progress(space, workers or usable_cores())
    front = front_of(points, objectives)
    if out is not None:
        write_points(points, front, out)
    if plot is not None:
        from adagp.program.figures.accelerator import plot_front

        plot_front(points, front, objectives, f"{space.workload.name}: {len(points):,} designs", plot)
    _print_front(space.workload.name, points, front, objectives, as_json)


def axis_texts(overrides: Mapping[str, Any], chip: Hardware) -> dict[str, str | None]:
    """Return the text of each axis: the user's, else None if the hardware file sets the field, else the default."""
    return {axis.name: overrides.get(axis.name, None if axis.field in chip.sets else axis.default) for axis in AXES}


def varied_axes(variations: dict[str, list[Any]], overrides: Mapping[str, Any], texts: Sequence[str]) -> dict[str, str]:
    """Move the fields that have their own axis from `variations` to the returned texts of axes."""
    axes = {axis.name: axis for axis in AXES}
    found: dict[str, str] = {}
    for name in [name for name in variations if SET_BY_OPTIONS.get(name) in axes]:
        axis = axes[SET_BY_OPTIONS[name]]
        if axis.name in overrides:
            raise OptionError(f"--vary {name} and {axis.flag} set the same field; give one of them.")
        del variations[name]
        found[axis.name] = next(text.partition("=")[2] for text in texts if text.startswith(f"{name}="))
    return found


def front_of(points: Sequence[Point], objectives: Sequence[str]) -> list[bool]:
    """Return for each point whether it is on the Pareto front of these objectives."""
    from adagp.hw.explore import pareto_front

    return pareto_front([[getattr(point, OBJECTIVES[name]) for name in objectives] for point in points])


def write_points(points: Sequence[Point], front: Sequence[bool], path: Path) -> None:
    """Write all points as CSV; the column `pareto` is 1 on the front."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*points[0].row, "pareto"])
    writer.writerows([*point.row.values(), int(on)] for point, on in zip(points, front, strict=True))
    publish(path, text.getvalue().encode("utf-8", "backslashreplace"))


def _check_output(out: Path | None, force: bool, plot: Path | None, objectives: Sequence[str]) -> None:
    if out is not None and out.exists() and not force:
        raise OptionError(f"'{out}' exists already; give another name, or --force to overwrite it.")
    if plot is not None and len(objectives) < 2:
        raise OptionError("a plot of the front needs at least two objectives.")


def _with_progress(space: Space, workers: int) -> list[Point]:
    from rich.progress import Progress

    from adagp.cli.terminal import Terminal

    with Progress(console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{space.points:,} designs", total=space.simulations)
        return explore_space(space, workers, lambda done: progress.advance(task, done))


def _print_front(
    model: str, points: Sequence[Point], front: Sequence[bool], objectives: Sequence[str], as_json: bool
) -> None:
    best = sorted((point for point, on in zip(points, front, strict=True) if on), key=lambda point: point.cycles)
    if as_json:
        report = {"model": model, "points": len(points), "objectives": list(objectives)}
        typer.echo(json.dumps({**report, "front": [point.row for point in best]}, indent=2))
    else:
        differing = [name for name in points[0].settings if len({point.settings[name] for point in points}) > 1]
        _print(best, differing, objectives, f"{model}: {len(best)} of {len(points):,} designs on the Pareto front")


def _print(best: Sequence[Point], varied: Sequence[str], objectives: Sequence[str], title: str) -> None:
    """Print a row for each point: the settings that vary within the space, the objectives, and the speed-up."""
    from adagp.cli.terminal import Terminal, table_of

    def words(point: Point) -> list[str]:
        settings = (point.settings[name] for name in varied)
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in settings]
        return [*texts, *(f"{getattr(point, name):.4g}" for name in figures), f"{point.speedup:.3f}x"]

    console, figures = Terminal(), [OBJECTIVES[name] for name in objectives]
    columns = [name.replace("_", "\n") for name in (*varied, *figures, "speedup")]
    look = {
        "title": title,
        "title_justify": "left",
        "box": None,
        "padding": (0, 2, 0, 0),
    }  # a row must fit 80 characters
    console.print(table_of(columns, map(words, best[:SHOWN]), ("array", "dataflow", "design"), **look))
    if len(best) > SHOWN:
        console.print(f"{len(best) - SHOWN} more; --out FILE.csv and --json list all of them.", highlight=False)


@dataclass(frozen=True)
class Grid:
    """Workloads and designs to simulate in all combinations. A batch size of None is the default or that of a recorded run."""

    models: tuple[str, ...]
    datasets: tuple[str, ...]
    accelerators: tuple[Accelerator, ...]
    batches: tuple[int | None, ...]
    designs: tuple[str, ...]
    labels: Labels = field(default_factory=dict)

    @property
    def simulations(self) -> int:
        """The number of simulations in the grid; each covers all designs."""
        return len(self.models) * len(self.datasets) * len(self.accelerators) * len(self.batches)

    def check(self, plan: RunOptions) -> None:
        """Reject unknown names and schedules that cannot be simulated, before any work."""
        for name in self.datasets:
            dataset_info(name)
        for name in self.models:
            if ":" not in name and not Path(name).exists():
                MODELS[name]
        plan.schedule(plan.epochs or EPOCHS)


SWEEP_COLUMNS = (
    *("model", "dataset", "dataflow", "array", "design", "batch", "epochs", "cycles", "seconds", "speedup"),
    *("energy_joules", "energy_saving", "memory_energy_saving", "dram_bytes", "backward_to_forward"),
)
SWEEP_SETTINGS = ("bandwidth", "predictor", "backward", "buffer_port", "zero_insertion")
ACCELERATOR_OPTIONS = tuple(SETTINGS[name] for name in SWEEP_SETTINGS)
_GRID = "Sweep"


def sweep(
    *,
    models: Annotated[str, option("Model names, separated by commas.", panel=_GRID)] = ",".join(SWEPT_MODELS),
    datasets: Annotated[str, option("Data sets.", panel=_GRID)] = "cifar10,cifar100,imagenet",
    dataflows: Annotated[str, option("Dataflows.", panel=_GRID)] = "ws,os,is,rs",
    arrays: Annotated[str, option("Arrays, ROWSxCOLUMNS.", panel=_GRID, also=check_size)] = "12x15",
    designs: Annotated[str, option("Designs, or all.", panel=_GRID)] = "all",
    batch: BatchSize = None,
    plan: RunOptions,
    overrides: Mapping[str, Any],
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
    """Deprecated: use adagp explore --rows. Simulates every combination and writes a CSV row for each design."""
    base = with_settings(Accelerator(), overrides)
    machines = tuple(
        replace(base, array=parse_array(array), dataflow=dataflow)
        for array in _names(arrays, "--arrays")
        for dataflow in _names(dataflows, "--dataflows")
    )
    grid = Grid(_names(models, "--models"), _names(datasets, "--datasets"), machines, (batch,), parse_designs(designs))
    grid.check(plan)
    typer.echo("adagp sweep is deprecated; use adagp explore MODEL,MODEL --rows.", err=True)
    _write_grid(grid, SampleOptions(), plan, SWEEP_COLUMNS, out, plot)


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError(f"{option} is empty; give at least one name.")
    return names


def _write_grid(
    grid: Grid,
    data: SampleOptions,
    plan: RunOptions,
    columns: Sequence[str] | None,
    out: Path | None,
    plot: Path | None,
    *,
    as_json: bool = False,
) -> None:
    """Simulate a grid and write a row for each design; `columns` None: all columns."""
    grid.check(plan)
    rows = list(_grid_rows(grid, data, plan))
    text = StringIO()
    if as_json:
        json.dump(rows, text, indent=2)
        text.write("\n")
    else:
        writer = csv.DictWriter(text, columns or tuple(rows[0]), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        publish(out, text.getvalue().encode("utf-8", "backslashreplace"))
    if plot is not None:
        _plot_speedups(rows, plot)


def _grid_rows(grid: Grid, data: SampleOptions, plan: RunOptions) -> Iterator[dict[str, Any]]:
    from rich.markup import escape
    from rich.progress import Progress

    from adagp.cli.terminal import Terminal

    with Progress(console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=grid.simulations)
        for model in grid.models:
            for dataset in grid.datasets:
                progress.update(task, description=escape(escaped(f"{model} on {dataset}")))
                origin = replace(data, dataset=dataset).origin(model)
                epochs = plan.epochs_of(origin)
                for run in [plan.run(origin, batch) for batch in grid.batches]:
                    for accelerator in grid.accelerators:
                        simulation = run_simulation(origin.workload(), accelerator, run, grid.designs)
                        for design in simulation.outcomes:
                            label = grid.labels.get(accelerator, {})
                            yield {**_row(simulation, dataset, design), "epochs": epochs, **label}
                        progress.advance(task)


def _row(simulation: Simulation, dataset: str, design: str) -> dict[str, Any]:
    outcome = simulation.outcomes[design]
    return {
        "model": simulation.workload.name,
        "dataset": dataset,
        **axis_values(simulation.accelerator),
        "array": str(outcome.array),
        "batch": simulation.run.batch,
        "design": design,
        "cycles": outcome.cost.cycles,
        "seconds": outcome.seconds,
        "speedup": simulation.speedup(design),
        "energy_joules": outcome.energy.joules,
        "energy_saving": simulation.energy_saving(design),
        "memory_energy_saving": simulation.memory_energy_saving(design),
        "dram_bytes": outcome.cost.dram_bits // 8,
        "backward_to_forward": simulation.backward_to_forward,
    }


def _plot_speedups(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the speed-ups of the first data set, dataflow and array."""
    setting = [rows[0][name] for name in ("dataset", "dataflow", "array")]
    speedups: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if [row[name] for name in ("dataset", "dataflow", "array")] == setting:
            speedups[row["model"]][row["design"]] = row["speedup"]
    dataset, dataflow, array = setting
    plot_speedups(speedups, f"{dataset}, {dataflow}, {array} PEs", path)


def more_options(command: str) -> Sequence[Option]:
    """Return the axes of `adagp explore`, and the options of accelerators of `adagp sweep`."""
    return AXIS_OPTIONS if command == "explore" else ACCELERATOR_OPTIONS
