"""`adagp reproduce`: the papers' tables and figures, with a verdict on every published number."""

import os
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagp.cli.options import DataFolder, experiments, offer
from adagp.core.escape import escaped
from adagp.core.files import check_output_folder
from adagp.core.options import option, switch

if TYPE_CHECKING:
    from adagp.cli.terminal import Terminal
    from adagp.program.reproduce.experiment import Experiment
    from adagp.program.reproduce.study import Estimate, Study

MOST_JOBS = 8
"""The default limit of parts in parallel, since each has its data set in memory."""
LOW_PRIORITY = 10
"""The niceness that --nice adds to the process and its children."""


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT",
            help="Names of experiments, or all; list prints them.",
            autocompletion=offer(experiments),
        ),
    ],
    budget: Annotated[
        str | None,
        option(
            "Size of the experiments: quick, short, standard or full.",
            unset="quick; with --report, all that have results",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "Folder for the results.", unset="runs/reproduce-BUDGET, or runs/reproduce-report", also=check_output_folder
        ),
    ] = None,
    data_dir: DataFolder = None,
    jobs: Annotated[
        int | None, option("Number of parts in parallel.", unset="one per CPU core, at most 8", low=1, high=1000)
    ] = None,
    device: Annotated[str, option("Device to train on: cpu, cuda, ...")] = "cpu",
    records: Annotated[
        Path | None,
        option(
            "Folder with results of finished parts, which are reused; new results are copied to it.",
            unset="none",
            also=check_output_folder,
        ),
    ] = None,
    report: Annotated[bool, switch("--report", "Evaluate the finished parts without running more.")] = False,
    nice: Annotated[bool, switch("--nice", "Run at low priority.")] = False,
) -> None:
    """Reproduce the papers' experiments. Finished parts are kept: the same command continues after an interruption."""
    from adagp.program.reproduce.experiment import ALL, Workspace, check_budget, choose

    if budget is not None:
        check_budget(budget)
    if names == ["list"]:
        _list()
        return
    if report and budget is None:
        _overview(names, records, out or Path("runs") / "reproduce-report")
        return
    budget = budget or "quick"
    experiments = choose(names, budget)
    from adagp.cli.progress import STOPPED, StopFlag
    from adagp.cli.terminal import Terminal
    from adagp.program.jobs import Stopped
    from adagp.program.reproduce.study import Study

    if device != "cpu":
        from adagp.program.train.session import check_device

        check_device(device)
    if nice:
        os.nice(LOW_PRIORITY)
    folder, console = out or Path("runs") / f"reproduce-{budget}", Terminal(stderr=True)
    if ALL in names and not report:
        experiments = _with_data(experiments, budget, data_dir, console)
    try:
        with StopFlag() as stop:
            workspace = Workspace(folder, data_dir, device, stop)
            study = Study(experiments, budget, workspace, records, report_only=report)
            _run(study, jobs or _usual_jobs(device), console)
    except Stopped:
        console.print("Stopped. The same command continues from here.", highlight=False)
        sys.exit(STOPPED)
    _report(study, folder)


def _overview(names: list[str], records: Path | None, folder: Path) -> None:
    """Write the report on all budgets from finished parts."""
    from adagp.cli.terminal import Terminal
    from adagp.program.reproduce.experiment import choose
    from adagp.program.reproduce.study import write_overview
    from adagp.program.reproduce.verdict import coverage_markdown

    rows = write_overview(choose(names), records, folder)
    console = Terminal()
    console.say(coverage_markdown(rows).partition("\n")[0])
    console.say(f"All numbers: {escaped(folder / 'published.csv')}; verdicts: {escaped(folder / 'verdicts.md')}")


def _usual_jobs(device: str) -> int:
    """Return the default number of parts in parallel: one for each usable CPU core, up to MOST_JOBS; 1 on another device."""
    from adagp.program.jobs import usable_cores

    return min(usable_cores(), MOST_JOBS) if device == "cpu" else 1


def _run(study: "Study", jobs: int, console: "Terminal") -> None:
    """Run the parts with a progress bar; without a terminal, print a line for each."""
    from adagp.cli.progress import JobProgress

    total, left = len(study.parts), len(study.left)
    with JobProgress(console) as progress:
        progress.say(f"Parts: {total}; finished earlier: {total - left}; in parallel: {jobs}.")
        if left:
            progress.say(_remaining(left, study.estimate(jobs)))
        if study.is_stale:
            progress.say(
                "Finished parts in this folder were made by another version of the program. They are kept; to run them again, "
                "delete the folder."
            )
        progress.begin("parts", total, total - left)
        study.run(jobs, progress)


def _remaining(parts: int, estimate: "Estimate") -> str:
    from adagp.cli.terminal import clock_time

    noun = "part" if parts == 1 else "parts"
    if estimate.unknown == parts:
        return f"Remaining: {parts} {noun}; no part of this kind is finished, so the time is not known."
    text = f"Remaining: {parts} {noun}, about {clock_time(estimate.seconds)} judging by the finished parts"
    return (
        f"{text}; {estimate.unknown} of them not included: none of their kind is finished."
        if estimate.unknown
        else f"{text}."
    )


def _report(study: "Study", folder: Path) -> None:
    from rich.table import Table

    from adagp.cli.terminal import Terminal
    from adagp.program.reproduce.experiment import read_missing, read_verdicts
    from adagp.program.reproduce.verdict import tally

    console, table = Terminal(), Table(title=f"Verdicts at budget {study.budget}")
    table.add_column("experiment", no_wrap=True)
    table.add_column("verdicts")
    for experiment in study.experiments:
        counts = tally(read_verdicts(folder / experiment.name) or [])
        words = ", ".join(f"{count} {word}" for word, count in counts.items())
        missing = read_missing(folder / experiment.name)
        table.add_row(experiment.name, f"{words} (partial: {missing})" if missing else words)
    console.print(table)
    console.print(f"All numbers: {escaped(folder / 'verdicts.md')}", highlight=False, soft_wrap=True)


def _with_data(
    experiments: Sequence["Experiment"], budget: str, data_dir: Path | None, console: "Terminal"
) -> list["Experiment"]:
    """Return the experiments whose data sets are on disk; print the names of the others."""
    from adagp.program.reproduce.study import without_data

    missing = without_data(experiments, budget, data_dir)
    if missing:
        text = ", ".join(f"{name} ({dataset})" for name, dataset in missing.items())
        console.say(f"Left out, since their data sets are not on disk: {text}.")
    return [experiment for experiment in experiments if experiment.name not in missing]


def _list() -> None:
    from adagp.cli.terminal import Terminal, print_table
    from adagp.program.reproduce.experiment import BUDGETS, all_experiments
    from adagp.program.reproduce.published import paper_titles

    rows, known = [], all_experiments()
    for experiment in known:
        times = (_time(experiment.minutes[budget]) if budget in experiment.minutes else "-" for budget in BUDGETS)
        needs = ", ".join(experiment.datasets("standard")) or "-"
        rows.append((experiment.name, experiment.published.paper, *times, needs, experiment.shows))
    columns = ("experiment", "paper", *BUDGETS, "data at standard", "what it shows")
    print_table(columns, rows, right=tuple(BUDGETS))
    console, titles = Terminal(), paper_titles()
    for line in (
        "Times are for one CPU and one experiment at a time; those of quick were measured, the others are estimates.",
        "Papers:",
        *(f"  {paper}: {titles[paper]}" for paper in dict.fromkeys(row[1] for row in rows)),
    ):
        console.say(line)
    if known:
        quickest = min(known, key=lambda experiment: experiment.minutes.get("quick") or inf)
        console.say(f"Next: adagp reproduce {quickest.name}")


def _time(minutes: float | None) -> str:
    if minutes is None:
        return "GPU days"
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
