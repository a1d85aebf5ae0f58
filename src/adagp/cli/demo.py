"""`adagp demo` and `adagp plot`: the first look at adagp, and pictures of any run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.core.escape import escaped
from adagp.core.files import check_output_folder
from adagp.core.options import option, switch
from adagp.errors import OptionError, RunError

if TYPE_CHECKING:
    from adagp.program.jobs import Job


def demo(
    out: Annotated[Path, option("Output folder for runs and plots.", also=check_output_folder)] = Path("runs/demo"),
    seeds: Annotated[int, option("Number of seeds (runs) per method.", low=1, high=10_000)] = 5,
    epochs: Annotated[int, option("Epochs of each run.", low=1, high=100_000)] = 20,
    force: Annotated[bool, switch("--force", "Overwrite an earlier demo in --out.")] = False,
) -> None:
    """Train on the built-in digits with backprop and with ADA-GP, and compare."""
    if seeds < 1 or epochs < 2:
        raise OptionError(f"the demo needs at least 1 seed and 2 epochs; got {seeds} and {epochs}.")
    from adagp.cli.terminal import Terminal
    from adagp.program import demo as demonstration
    from adagp.program.figures.curves import draw
    from adagp.program.figures.style import require_matplotlib
    from adagp.program.report.page import require_library, write_report

    page = out / "report.html"
    require_matplotlib()
    require_library()
    demonstration.prepare_folder(out, force=force)
    console = Terminal()
    contenders = demonstration.plan(seeds, epochs)
    console.print("Schedule of ADA-GP:", highlight=False)
    console.print(contenders["adagp"][0].schedule().table(epochs, demonstration.BATCHES), highlight=False)
    _train(demonstration.training_jobs(contenders, out))
    rows = [
        demonstration.compare(name, demonstration.read_summaries(out, name, configs))
        for name, configs in contenders.items()
    ]
    console.print(_table(rows, seeds))
    console.print(f"Runs are in {escaped(out)}; plots of the first seed:", highlight=False, soft_wrap=True)
    drawn = [demonstration.run_path(out, name, contenders[name][0]) for name in ("bp", "adagp")]
    for path in draw(drawn, out / "pictures"):
        console.print(f"  {escaped(path)}", highlight=False, soft_wrap=True)
    write_report([out], page)
    console.print(f"Report, to be opened in a browser:\n  {escaped(page)}", highlight=False, soft_wrap=True)


def _train(jobs: "list[Job]") -> None:
    """Train the runs, as many at a time as there are CPU cores; Ctrl-C ends the demonstration."""
    from adagp.cli.progress import STOPPED, JobProgress
    from adagp.cli.terminal import Terminal
    from adagp.program.jobs import StopFlag, Stopped, run_jobs, usable_cores

    try:
        with StopFlag() as stop, JobProgress(Terminal(stderr=True)) as progress:
            progress.begin("training on the digits", len(jobs))
            failures = run_jobs(jobs, usable_cores(), progress, stop)
    except Stopped:
        sys.exit(STOPPED)
    if failures:
        raise RunError(f"{failures[0].name} failed: {failures[0].reason}")


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain runs.")],
    out: Annotated[Path, option("Output folder for the plots.", also=check_output_folder)] = Path("pictures"),
) -> None:
    """Plot loss and accuracy of runs with their phases, and the prediction quality of each site."""
    from adagp.program.figures.curves import draw

    for path in draw(runs, out):
        typer.echo(escaped(path))


def _table(rows: list[dict[str, Any]], seeds: int) -> Any:
    from rich.table import Table

    table = Table(title=f"digits_cnn on digits, {seeds} seeds each")
    for name in ("", "epochs", "BP", "GP", "accuracy", "range, %", "cosine", "previous"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            *(str(row[key]) for key in ("epochs", "bp_batches", "gp_batches")),
            f"{row['accuracy_mean']:.2%}",
            f"{100 * row['accuracy_low']:.1f} to {100 * row['accuracy_high']:.1f}",
            *("-" if row[key] is None else f"{row[key]:.3f}" for key in ("cosine", "cosine_previous")),
        )
    table.caption = (
        "BP, GP: batches of a run. bp short: about as many batches as adagp has BP batches, as if its GP batches were left "
        "out. cosine: predicted against true gradient, mean over sites and epochs; previous: the previous true gradient "
        "against it (baseline)."
    )
    return table
