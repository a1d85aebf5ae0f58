"""`adagp compare`: methods and seeds side by side, with intervals; `adagp worth`: what a GP batch is worth."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli.options import DataFolder, Download, Json, Picture
from adagp.core.escape import escaped
from adagp.core.files import check_output_folder
from adagp.core.options import Option, option, switch
from adagp.errors import OptionError, RunError
from adagp.program.compare.methods import COMPARED_EPOCHS, COMPARED_METHODS, DEFAULTS
from adagp.program.run.config import TrainConfig, help_text, known_options, read_toml
from adagp.program.run.documents import find_fault
from adagp.program.run.folder import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adagp.cli.terminal import Terminal
    from adagp.program.compare.comparison import Comparison
    from adagp.program.compare.tables import Sheet
    from adagp.program.tasks.base import Task

_WHAT, _MEASURED, _PLACE = "Comparison", "Measurements", "Execution"
_UNKNOWN_LENGTH = 10**9
"""The batches of a run before the size of the data set is known: every warm-up fits."""


def more_options(command: str) -> "Sequence[Option]":
    """Return the options of the runs that `adagp compare` trains, with its own defaults."""
    if command != "compare":
        return ()
    defaults = {**DEFAULTS, "epochs": COMPARED_EPOCHS}
    known = [known for known in known_options().values() if known.compared != "fixed"]
    return [replace(each, default=defaults.get(each.name, each.default), help=help_text(each)) for each in known]


def compare(
    overrides: dict[str, Any],
    methods: Annotated[
        str,
        option(
            "Methods, separated by commas; METHOD@SCHEDULE gives one its own schedule, NAME:METHOD another name.",
            panel=_WHAT,
        ),
    ] = COMPARED_METHODS,
    seeds: Annotated[int, option("Number of seeds (runs) per method.", panel=_WHAT, low=1, high=10_000)] = 3,
    regimes: Annotated[
        str,
        option(
            "Budgets that are equal for all methods: batches, seconds, or modelled cycles (accelerator, pipeline, cluster).",
            panel=_WHAT,
        ),
    ] = "batches,seconds",
    seconds: Annotated[
        float | None, option("Time budget in seconds.", panel=_WHAT, unset="what bp takes", above=0, high=1e9)
    ] = None,
    accelerator: Annotated[
        str, option("Accelerator for the modelled budgets: design,dataflow,array.", panel=_WHAT)
    ] = "max,ws,12x15",
    pipeline: Annotated[
        str,
        option(
            "Pipeline for the modelled budgets: a schedule or best, devices, micro-batches, costs (modelled or balanced).",
            panel=_WHAT,
        ),
    ] = "best,devices=4,micro-batches=4",
    cluster: Annotated[
        str,
        option(
            "Data-parallel devices for the modelled budget: devices, link (GB/s), latency (microseconds), overlap (yes or no).",
            panel=_WHAT,
        ),
    ] = "devices=16,link=10,latency=5",
    tune: Annotated[
        str | None,
        option(
            "First tune each method on held-out training data: lr=0.01,0.03 or lr=0.01,0.03,batch_size=32,64.",
            panel=_WHAT,
            unset="none",
        ),
    ] = None,
    tune_batches: Annotated[
        int | None,
        option(
            "Length of backprop's tuning runs in batches of --batch-size; the other methods' runs cost the same.",
            panel=_WHAT,
            unset="the runs' own",
            low=1,
        ),
    ] = None,
    tune_seeds: Annotated[
        int, option("Tuning runs (seeds) per method and value.", panel=_WHAT, low=1, high=10_000)
    ] = 1,
    curve: Annotated[
        str | None,
        option(
            "Also train backprop for these multiples of its batches, to measure what a GP batch is worth: 0.5,0.75,1.25.",
            panel=_WHAT,
            unset="none",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "Set an option: method.option=value for one method, option=value for all. Repeatable.",
            "--set",
            panel=_WHAT,
            unset="none",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "Read options of adagp train from a TOML file; the command line takes precedence.",
            panel=_WHAT,
            unset="none",
        ),
    ] = None,
    target: Annotated[
        float | None,
        option("Report the time until this test value is reached (accuracy: 0 to 1).", panel=_MEASURED, unset="none"),
    ] = None,
    large_batch: Annotated[
        int,
        option(
            "Samples in the large-batch gradient that gradients are compared with; 0: none.", panel=_MEASURED, low=0
        ),
    ] = 4096,
    points: Annotated[
        int, option("Number of batches per run at which gradients are compared.", panel=_MEASURED, low=1, high=100_000)
    ] = 5,
    aligned_seeds: Annotated[
        int, option("Number of seeds used for the gradient comparison.", panel=_MEASURED, low=0, high=10_000)
    ] = 1,
    rounds: Annotated[
        int, option("Number of timing repetitions for each kind of batch.", panel=_MEASURED, low=1, high=100_000)
    ] = 30,
    out: Annotated[
        Path, option("Output folder; a comparison in it is continued.", panel=_PLACE, also=check_output_folder)
    ] = Path("runs/compare"),
    jobs: Annotated[
        int | None,
        option("Number of runs in parallel.", panel=_PLACE, unset="as CPU cores and memory allow", low=1, high=1000),
    ] = None,
    data_dir: DataFolder = None,
    download: Download = False,
    as_json: Json = False,
) -> None:
    """Train several methods over several seeds, at equal batches and at equal cost, and report what each gains."""
    from adagp.program.compare.comparison import FORMER
    from adagp.program.compare.grid import read_tuning

    measured = {"large_batch": large_batch, "points": points, "aligned_seeds": aligned_seeds, "rounds": rounds}
    chosen = tuple(FORMER.get(regime, regime) for regime in _words(regimes))
    choices: dict[str, Any] = {
        "seeds": seeds,
        "seconds": seconds,
        **measured,
        "regimes": chosen,
        "accelerator": accelerator,
        "pipeline": pipeline,
        "cluster": cluster,
        "curve": tuple(_factor(word) for word in _words(curve or "")),
    }
    if tune is not None:
        choices["tuning"] = read_tuning(tune, tune_batches, tune_seeds)
    elif tune_batches is not None:
        raise OptionError("--tune-batches needs --tune.")
    file = read_toml(config) if config else {}
    comparison, length = _read(methods, file, overrides, settings or [], choices, data_dir)
    from adagp.cli.terminal import busy

    with busy("loading torch and the data set…"):
        task, comparison = _with_data(comparison, length, data_dir, download)
    if target is not None:
        task.metric.check_target(target)
    document = _run_with_progress(comparison, task, out, jobs, target)
    if as_json:
        typer.echo(to_json(document, indent=2))
    else:
        _show(document, out)
    if document["failed"]:
        sys.exit(1)


def _factor(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise OptionError(f"cannot read '{word}' in --curve; write numbers, for example 0.5,0.75,1.25.") from None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _read(
    methods: str,
    file: dict[str, Any],
    overrides: dict[str, Any],
    texts: list[str],
    choices: dict[str, Any],
    data_dir: Path | None,
) -> "tuple[Comparison, dict[str, int]]":
    """Return the comparison, without its length, which needs the data set; and the options on length: epochs or batches."""
    from adagp.program.compare.comparison import Comparison
    from adagp.program.compare.methods import check_user_options, read_candidates, read_settings

    candidates = read_candidates(methods)
    common, own = read_settings(texts, candidates)
    options = {**file, **common, **overrides}
    check_user_options(options)
    length = {name: options.pop(name) for name in ("epochs", "batches") if options.get(name) is not None}
    if len(length) == 2:
        raise OptionError("--epochs and --batches both set the length of the runs; give one of them.")
    TrainConfig.from_dict({"method": "bp", **length}, "command line")
    data_folder = None if data_dir is None else str(data_dir)
    return Comparison(
        candidates, options=options, settings=own, batches=_UNKNOWN_LENGTH, data_dir=data_folder, **choices
    ), length


def _with_data(
    comparison: "Comparison", length: dict[str, int], data_dir: Path | None, download: bool
) -> "tuple[Task, Comparison]":
    from adagp.program.figures.style import require_matplotlib
    from adagp.program.tasks.base import build_task

    require_matplotlib()
    task = build_task(comparison.base_config, data_dir, download)
    batches = length.get("batches") or length.get("epochs", COMPARED_EPOCHS) * task.batches_per_epoch
    return task, replace(comparison, batches=batches)


def _run_with_progress(
    comparison: "Comparison", task: "Task", out: Path, jobs: int | None, target: float | None
) -> dict[str, Any]:
    from adagp.cli.progress import STOPPED, JobProgress, StopFlag
    from adagp.cli.terminal import Terminal
    from adagp.program.compare.workflow import run_comparison
    from adagp.program.jobs import Stopped

    console = Terminal(stderr=True)
    command = shlex.join(["adagp", *sys.argv[1:]])
    try:
        with StopFlag() as stop, JobProgress(console, "checking the methods…") as progress:
            return run_comparison(comparison, out, task, progress, command=command, jobs=jobs, target=target, stop=stop)
    except Stopped:
        console.print("Stopped. The same command continues from here.", highlight=False)
        sys.exit(STOPPED)


def _show(document: dict[str, Any], out: Path) -> None:
    from adagp.program.compare.tables import sheets
    from adagp.program.compare.verdict import verdict_lines

    console = print_sheets(sheets(document))
    files = "comparison.md, report.json, runs.csv, methods.csv, sites.csv, pareto.png and .svg"
    files += ", worth.png and .svg" if document["worth"] else ""
    console.say(f"{escaped(out)}: {files}\n")
    for line in verdict_lines(document):
        console.print(line, highlight=False)
    command = shlex.join(["adagp", "report", str(out), "--out", str(out / "report.html")])
    console.print(f"Next: {escaped(command)}", highlight=False, soft_wrap=True)


def print_sheets(sheets: "Sequence[Sheet]") -> "Terminal":
    """Print tables on standard output; return the terminal for more."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from adagp.cli.terminal import Terminal, fitting_widths

    console = Terminal()
    for sheet in sheets:
        table = Table(
            title=sheet.title,
            caption=sheet.note,
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        widths = fitting_widths(sheet.heads, sheet.rows, console.width - 2 * (len(sheet.heads) - 1))
        for head, width in zip(sheet.heads, widths, strict=True):
            left = head in ("method", "platform", "verdict")
            table.add_column(head, justify="left" if left else "right", overflow="fold", width=width)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    return console


def worth(
    comparisons: Annotated[
        list[Path], typer.Argument(metavar="COMPARISON", help="Folder of a finished adagp compare --curve ...")
    ],
    as_map: Annotated[
        bool,
        switch("--map", "Show where the methods of one or several comparisons pay, on which networks and platforms."),
    ] = False,
    as_json: Json = False,
    plot: Picture = None,
) -> None:
    """Report how many BP batches a GP batch replaces in a comparison, what it costs on each platform, and where it pays."""
    if as_map:
        _show_map(comparisons, as_json, plot)
        return
    if len(comparisons) > 1:
        raise OptionError(f"{len(comparisons)} folders were given; several can be shown with --map only.")
    report = read_worth(comparisons[0])
    if plot is not None:
        from adagp.program.compare.plots import draw_worth

        draw_worth(report, plot)
    if as_json:
        typer.echo(to_json(report, indent=2))
        return
    from adagp.program.compare.tables import worth_sheets

    print_sheets(worth_sheets(report))


def _show_map(folders: list[Path], as_json: bool, plot: Path | None) -> None:
    from adagp.program.compare.tables import map_sheets
    from adagp.program.compare.worth_map import read_map

    points, left_out = read_map(folders)
    if plot is not None:
        from adagp.program.compare.plots import draw_map

        draw_map(points, plot)
    for reason in left_out:
        typer.echo(f"left out: {reason}", err=True)
    if as_json:
        typer.echo(to_json({"points": [point.as_dict() for point in points], "left_out": left_out}, indent=2))
    else:
        print_sheets(map_sheets(points))


def read_worth(folder: Path) -> dict[str, Any]:
    """Return the break-even in the report of a comparison; raise if there is none."""
    from adagp.program.compare.verdict import read_report
    from adagp.program.compare.worth import WORTH

    report: dict[str, Any] | None = read_report(folder).get("worth")
    if report and (fault := find_fault(report, WORTH, "worth")):
        raise RunError(f"cannot read '{escaped(folder / 'report.json')}': {fault}")
    if not report or not report["methods"]:
        raise RunError(
            f"'{escaped(folder)}' has no break-even: that needs backprop at several lengths. Repeat the "
            "comparison with --curve 0.5,0.75,1.25; its finished runs are kept."
        )
    return report
