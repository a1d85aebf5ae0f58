"""Short help: `adagp train --help` shows the options that most people need, with examples; `--help-all` shows all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

USUAL: dict[str, tuple[str, ...]] = {
    "train": (
        *("dataset", "model", "method", "epochs", "batches", "batch_size", "lr", "ratio", "device"),
        *("out", "resume", "data_dir"),
    ),
    "compare": (
        *("methods", "seeds", "regimes", "dataset", "model", "epochs", "batches", "batch_size", "lr"),
        *("out", "jobs", "data_dir"),
    ),
    "simulate": (
        *("model", "dataset", "batch", "epochs", "method", "ratio", "from_run", "dataflow", "array"),
        *("per_layer", "as_json", "plot"),
    ),
}
"""By command, the parameters that its short help lists."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "adagp train --epochs 1",
        "adagp train --method adagp --epochs 4 --out runs/one",
        "adagp train --dataset cifar10 --download --model vgg13_bn --width 0.25 --batch-size 128 --lr 0.03",
        "adagp train --resume runs/one",
    ),
    "compare": (
        "adagp compare --seeds 3",
        "adagp compare --methods bp,feedback@1:1,adagp@1:1,skip@1:1 --regimes batches --out runs/four",
    ),
    "simulate": (
        "adagp simulate vgg13",
        "adagp simulate vgg13 --method adagp --dataflow rs --array 8x8 --per-layer",
        "adagp simulate --from-run runs/one --plot one.svg",
    ),
}
WHOLE = "adagp.whole_help"


def epilog(command: str, text: str) -> str:
    """Return what stands below the help of a command: its examples, a line each, and `text`."""
    examples = EXAMPLES.get(command)
    return "\n\n".join(["Examples:", *examples, text]) if examples else text


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[WHOLE] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show all options and exit.", is_eager=True, callback=_show_all, show_default="off"
    ),
]


@contextmanager
def usual_options_only(command: str | None, context: Any, parameters: list[Any]) -> Iterator[None]:
    """Hide all but the usual options of a command while its short help is written."""
    usual = USUAL.get(command or "")
    hidden = []
    if usual is not None and not context.meta.get(WHOLE):
        shown = {*usual, "help", "help_all"}
        hidden = [one for one in parameters if one.name not in shown and not getattr(one, "hidden", True)]
    for parameter in hidden:
        parameter.hidden = True
    try:
        yield
    finally:
        for parameter in hidden:
            parameter.hidden = False
