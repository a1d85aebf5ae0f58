"""`adagp demo` and `adagp plot`: a small first comparison, and pictures of any run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.core.escape import escaped
from adagp.core.files import check_output_folder
from adagp.core.options import option, switch
from adagp.errors import RunError

if TYPE_CHECKING:
    from adagp.program.compare.comparison import Comparison

NEXT = "adagp train --epochs 1"


def demo(
    out: Annotated[Path, option("Output folder for runs and report.", also=check_output_folder)] = Path("runs/demo"),
    seeds: Annotated[int, option("Number of seeds (runs) per method.", low=1, high=10_000)] = 3,
    batches: Annotated[int, option("Batches of each run; an epoch has 44.", low=9, high=1_000_000)] = 440,
    force: Annotated[bool, switch("--force", "Overwrite an earlier demo in --out.")] = False,
) -> None:
    """Compare backprop with predicted gradients on the built-in digits, and replay the runs on a modelled accelerator."""
    from adagp.cli.terminal import Terminal
    from adagp.program import demo as demonstration
    from adagp.program.figures.style import require_matplotlib
    from adagp.program.report.page import require_library, write_report

    require_matplotlib()
    require_library()
    demonstration.prepare_folder(out, force=force)
    document = _compare(demonstration.demo_comparison(seeds, batches), out)
    console = Terminal()
    console.print(_table(document))
    page = out / "report.html"
    write_report([out], page)
    speedup = demonstration.modelled_speedup(out)
    for sentence in demonstration.conclusion(document, speedup):
        console.print(f"- {sentence}", highlight=False)
    console.print(f"Open {escaped(page)} in a browser. Next: {NEXT}", highlight=False, soft_wrap=True)


def _compare(comparison: "Comparison", out: Path) -> dict[str, Any]:
    """Train the runs, one per CPU core at a time; Ctrl-C ends the demonstration."""
    from adagp.cli.progress import STOPPED, JobProgress, StopFlag
    from adagp.cli.terminal import Terminal
    from adagp.program.compare.workflow import run_comparison
    from adagp.program.jobs import Stopped, usable_cores
    from adagp.program.tasks.base import build_task

    task = build_task(comparison.config(comparison.reference, 0), None, False)
    try:
        with StopFlag() as stop, JobProgress(Terminal(stderr=True)) as progress:
            document = run_comparison(
                comparison, out, task, progress, command="adagp demo", jobs=usable_cores(), stop=stop
            )
    except Stopped:
        sys.exit(STOPPED)
    if document["failed"]:
        raise RunError(f"{document['failed'][0]['name']} failed: {document['failed'][0]['reason']}")
    return document


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders that contain runs.")],
    out: Annotated[Path, option("Output folder for the plots.", also=check_output_folder)] = Path("pictures"),
) -> None:
    """Plot loss and accuracy of runs with their phases, and the prediction quality of each site."""
    from adagp.program.figures.curves import draw

    for path in draw(runs, out):
        typer.echo(escaped(path))


def _table(document: dict[str, Any]) -> Any:
    from rich.table import Table

    rows = document["regimes"]["batches"]["methods"]
    table = Table(title=f"digits_cnn on digits, {document['batches']} batches, {document['seeds']} seeds each")
    for name in ("method", "BP batches", "GP batches", "accuracy", "95% interval, %"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for name, row in rows.items():
        low, high = row["accuracy_low"], row["accuracy_high"]
        table.add_row(
            name,
            f"{row['bp_batches']:.0f}",
            f"{row['gp_batches'] + row['guarded_batches']:.0f}",
            f"{row['accuracy_mean']:.1%}",
            "-" if low is None else f"{100 * low:.1f} to {100 * high:.1f}",
        )
    return table
