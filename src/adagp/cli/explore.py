"""`adagp explore`: a design space of accelerators for one model, and its Pareto front."""

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.completion import NAMES, offer
from adagp.cli.options import OUTPUT, Json, Picture, option, switch
from adagp.cli.simulated_runs import PresetName, RunOptions, SampleOptions
from adagp.core.files import check_output_file, publish
from adagp.core.options import Option
from adagp.errors import OptionError
from adagp.hw import Accelerator
from adagp.hw.axes import AXES, parse_axes
from adagp.hw.explore import OBJECTIVES, Point, Space, accelerators, parse_objectives
from adagp.hw.explore import explore as explore_space
from adagp.hw.settings import PRESETS, with_preset
from adagp.program.jobs import usable_cores

_SPACE = "Design space"
SHOWN = 40
"""Rows of the front that are printed; the files have them all."""

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
            help="As for simulate: name, package.module:function, file or run folder.",
            autocompletion=offer(NAMES["model"]),
        ),
    ],
    data: SampleOptions,
    plan: RunOptions,
    preset: PresetName = None,
    given: Mapping[str, Any],
    objective: Annotated[
        str, option(f"What is to be small: of {', '.join(OBJECTIVES)}.", panel=_SPACE)
    ] = "cycles,energy,area",
    workers: Annotated[
        int | None,
        option("Processes.", panel=OUTPUT, unset="one per CPU core", low=1, high=256, allowed="from 1 to 256"),
    ] = None,
    out: Annotated[
        Path | None, option("All points to FILE.csv.", panel=OUTPUT, unset="none", also=check_output_file)
    ] = None,
    force: Annotated[bool, switch("--force", "Overwrite FILE.csv.", panel=OUTPUT)] = False,
    plot: Picture = None,
    as_json: Json = False,
) -> None:
    """Simulate every point of a design space and show its Pareto front. Axes: lists, A..B (doubles), A..B:+STEP."""
    base = with_preset(Accelerator(), preset)
    values = parse_axes(axis_texts(given, preset))
    objectives = parse_objectives(objective)
    _check_output(out, force, plot, objectives)
    machines = accelerators(base, values)  # refuses what cannot be built
    origin = data.origin(model)
    recorded = origin.replay is not None and "batch" not in given
    batches: Sequence[int | None] = (None,) if recorded else values["batch"]
    runs = tuple(plan.run(origin, batch) for batch in batches)
    space = Space(origin.workload(), machines, runs, tuple(values["design"]))
    points = _with_progress(space, workers or usable_cores())
    front = front_of(points, objectives)
    if out is not None:
        write_points(points, front, out)
    if plot is not None:
        from adagp.program.figures.accelerator import plot_front

        plot_front(points, front, objectives, f"{space.workload.name}: {len(points):,} designs", plot)
    best = sorted((point for point, on in zip(points, front, strict=True) if on), key=lambda point: point.cycles)
    varied = [name for name in points[0].settings if len({point.settings[name] for point in points}) > 1]
    report = {"model": space.workload.name, "points": len(points), "objectives": list(objectives)}
    if as_json:
        typer.echo(json.dumps({**report, "front": [point.row for point in best]}, indent=2))
    else:
        _print(
            best,
            varied,
            objectives,
            f"{space.workload.name}: {len(best)} of {len(points):,} designs on the Pareto front",
        )


def axis_texts(given: Mapping[str, Any], preset: str | None) -> dict[str, str | None]:
    """Return what each axis is to be: as given, or its default; a preset's own value where it has one."""
    fixed = PRESETS[preset].settings if preset is not None else {}
    return {axis.name: given.get(axis.name, None if axis.field in fixed else axis.default) for axis in AXES}


def front_of(points: Sequence[Point], objectives: Sequence[str]) -> list[bool]:
    """Tell of each point whether no other is better in all objectives."""
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
        raise OptionError("a picture of the front needs two objectives or more.")


def _with_progress(space: Space, workers: int) -> list[Point]:
    from rich.progress import Progress

    from adagp.cli.terminal import Terminal

    with Progress(console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{space.points:,} designs", total=space.simulations)
        return explore_space(space, workers, lambda done: progress.advance(task, done))


def _print(best: Sequence[Point], varied: Sequence[str], objectives: Sequence[str], title: str) -> None:
    """Print a row for each point: those settings that differ within the space, the objectives, and the speed-up."""
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
        console.print(f"{len(best) - SHOWN} more; --out FILE.csv and --json have them all.", highlight=False)
