"""`adagp report`: a self-contained page about some runs, or a live page that follows them."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from adagp.core.escape import escaped
from adagp.core.options import option, switch
from adagp.errors import OptionError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders that contain runs.")],
    out: Annotated[Path | None, option("Output file, FILE.html.", unset="report.html")] = None,
    phases: Annotated[
        str | None, option("Phases of the batches in the pipeline charts, such as GP,BP.", unset="the runs' own")
    ] = None,
    watch: Annotated[
        bool, switch("--watch", "Serve a live page on this machine that follows the runs, instead of writing a file.")
    ] = False,
    port: Annotated[int | None, option("Port of --watch; 0: any free port.", low=0, high=65535, unset="8765")] = None,
) -> None:
    """Write a self-contained HTML page about runs: ranking, curves, quality by site, time, accelerator, pipelines."""
    if watch:
        _check_without_watch({"--out": out, "--phases": phases})
        _serve(runs, port)
        return
    if port is not None:
        raise OptionError("--port needs --watch.")
    from adagp.program.report.page import write_report

    page = out or Path("report.html")
    count = write_report(runs, page, phases)
    size = page.stat().st_size / 1e6
    typer.echo(f"{escaped(page)}: {count} run{'' if count == 1 else 's'}, {size:.1f} MB. Open it in a browser.")


def _check_without_watch(options: dict[str, object]) -> None:
    for flag, value in options.items():
        if value is not None:
            raise OptionError(f"{flag} cannot be combined with --watch, which writes no file.")


def _serve(runs: Sequence[Path], port: int | None) -> None:
    from adagp.program.report.live import PORT, LiveReport, LiveServer

    ends = (signal.SIGINT, signal.SIGTERM)  # SIGINT is ignored if a shell started the program in the background
    previous_handlers = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        with LiveServer(LiveReport(runs), PORT if port is None else port) as server:
            typer.echo(f"Open {server.address} in a browser on this machine; Ctrl-C ends it.")
            server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("Stopped watching.", err=True)
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
