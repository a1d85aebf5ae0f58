"""`adagp reproduce`: the papers' tables and figures, made again, with a verdict on every published number."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagp.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from adagp.reproduce.study import Study

MOST_JOBS = 8
"""Parts at a time if nobody says how many: each holds its data set in memory."""


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Experiments by name, all, or list to see them.")],
    budget: Annotated[str, typer.Option(help="quick, standard or full.")] = "quick",
    out: Annotated[Path | None, typer.Option(help="Folder for the results; runs/reproduce-BUDGET by default.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are (standard, full).")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Parts at a time; one for each processor, up to 8, by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of training: cpu, cuda, ...")] = "cpu",
) -> None:
    """Repeat the papers' experiments. Finished parts are kept: the same command goes on after a stop."""
    from adagp.reproduce.catalogue import choose
    from adagp.reproduce.experiment import check_budget
    from adagp.reproduce.parts import Place

    check_budget(budget)
    if names == ["list"]:
        _list()
        return
    experiments = choose(names)
    if jobs is not None and jobs < 1:
        raise OptionError(f"--jobs is {jobs}; it must be 1 or more.")
    from rich.console import Console

    from adagp.cli.progress import STOPPED, StopFlag
    from adagp.reproduce.study import Study

    folder, console = out or Path("runs") / f"reproduce-{budget}", Console(stderr=True)
    with StopFlag() as stop:
        study = Study(experiments, budget, Place(folder, data_dir, device, stop))
        ended = _run(study, jobs or _usual_jobs(device), console)
    if not ended:
        console.print("Stopped. The same command goes on from here.", highlight=False)
        sys.exit(STOPPED)
    _report(study, folder)


def _usual_jobs(device: str) -> int:
    """Return one part for each processor that we may use, up to MOST_JOBS; one only where they would share a device."""
    if device != "cpu":
        return 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST_JOBS)


def _run(study: "Study", jobs: int, console: "Console") -> bool:
    """Do the parts under a bar; where nobody looks at a terminal, a line for each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    total, left = len(study.parts), len(study.left)
    console.print(f"Parts: {total}, finished before: {total - left}, at a time: {jobs}.", highlight=False)
    if study.is_stale:
        console.print(
            "Finished parts in this folder were made by another state of the program. They are kept; to do them anew, "
            "delete the folder.",
            highlight=False,
            soft_wrap=True,
        )
    columns = (
        TextColumn("parts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("", total=total, completed=total - left, last="")
        done = total - left

        def tell(part: object) -> None:
            nonlocal done
            done += 1
            key = str(getattr(part, "key", part))
            progress.update(bar, completed=done, last=key)
            if progress.disable:
                console.print(f"{done}/{total} {key}", highlight=False, soft_wrap=True)

        return study.run(jobs, tell)


def _report(study: "Study", folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from adagp.reproduce.experiment import read_verdicts
    from adagp.reproduce.verdict import tally

    console, table = Console(), Table(title=f"Verdicts at budget {study.budget}")
    table.add_column("experiment", no_wrap=True)
    table.add_column("verdicts")
    for experiment in study.experiments:
        counts = tally(read_verdicts(folder / experiment.name) or [])
        table.add_row(experiment.name, ", ".join(f"{count} {word}" for word, count in counts.items()))
    console.print(table)
    console.print(f"Every number: {folder / 'verdicts.md'}", highlight=False, soft_wrap=True)


def _list() -> None:
    from adagp.cli.catalogue import print_table
    from adagp.reproduce.catalogue import EXPERIMENTS
    from adagp.reproduce.experiment import BUDGETS

    rows = []
    for name in EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        times = (_time(experiment.minutes[budget]) for budget in BUDGETS)
        needs = ", ".join(experiment.datasets("standard")) or "-"
        rows.append((name, experiment.published.paper, *times, needs, experiment.shows))
    columns = ("experiment", "paper", *BUDGETS, "data but at quick", "what it shows")
    print_table(columns, rows, right=tuple(BUDGETS))
    typer.echo(
        "Times on one processor, each experiment by itself; those of quick were measured, the others are estimates."
    )


def _time(minutes: float | None) -> str:
    if minutes is None:
        return "GPU days"
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
