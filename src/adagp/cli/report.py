"""`adagp report`: one self-contained page about some runs."""

from pathlib import Path
from typing import Annotated

import typer

from adagp.cli.options import option
from adagp.shown import shown


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs below them.")],
    out: Annotated[Path, option("The page, FILE.html.")] = Path("report.html"),
    phases: Annotated[
        str | None, option("Batches of the pipelines' charts, such as GP,BP.", unset="the runs' own")
    ] = None,
) -> None:
    """Write one self-contained page about runs: who wins, curves, quality by site, time, accelerator, pipelines."""
    from adagp.report.page import write_report

    count = write_report(runs, out, phases)
    typer.echo(f"{shown(out)}: {count} run{'' if count == 1 else 's'}, {out.stat().st_size / 1e6:.1f} MB")
