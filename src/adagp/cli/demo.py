"""`adagp demo` and `adagp plot`: the first look at adagp, and pictures of any run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.errors import OptionError


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and pictures.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 5,
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 20,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier demonstration in --out.")] = False,
) -> None:
    """Train on the embedded digits by backprop and by ADA-GP, and compare."""
    if seeds < 1 or epochs < 2:
        raise OptionError(f"the demonstration needs 1 seed and 2 epochs at least; got {seeds} and {epochs}.")
    from rich.console import Console
    from rich.progress import Progress

    from adagp.lab import demo as lab
    from adagp.lab.figures import require_matplotlib

    lab.refuse_existing(out, force=force)
    require_matplotlib()
    console = Console()
    configs = lab.plan(seeds, epochs)
    console.print(configs[1].schedule().table(epochs, 44), highlight=False)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"{len(configs)} runs on the digits", total=len(configs) * epochs)
        summaries = list(lab.carry_out(configs, out, lambda: progress.advance(bar)))
    console.print(_table(lab.compare(summaries), seeds))
    console.print("Runs and pictures:", highlight=False)
    for path in lab.pictures(out):
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("pictures"),
) -> None:
    """Draw loss and accuracy curves of runs with their phases, and the predictions' quality by site."""
    from adagp.lab.figures import draw

    for path in draw(runs, out):
        typer.echo(path)


def _table(rows: list[dict[str, Any]], seeds: int) -> Any:
    from rich.table import Table

    table = Table(title=f"digits_cnn on digits, {seeds} seeds each")
    for name in ("method", "test accuracy", "lowest to highest", "BP batches", "GP batches", "cosine", "yardstick"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['accuracy_mean']:.4f}",
            f"{row['accuracy_low']:.4f} to {row['accuracy_high']:.4f}",
            str(row["bp_batches"]),
            str(row["gp_batches"]),
            *("-" if row[key] is None else f"{row[key]:.3f}" for key in ("cosine", "cosine_previous")),
        )
    table.caption = (
        "cosine: predicted against true gradient, mean over sites and epochs; "
        "yardstick: the last true gradient against the next"
    )
    return table
