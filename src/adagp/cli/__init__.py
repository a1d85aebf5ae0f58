"""The command line: parse, make one call, print. Commands import torch only when they run."""

import sys

import typer

from adagp.allocator import keep_freed_memory
from adagp.cli.catalogue import datasets, models
from adagp.cli.compare import compare
from adagp.cli.demo import demo, plot
from adagp.cli.pipeline import pipeline
from adagp.cli.report import report
from adagp.cli.reproduce import reproduce
from adagp.cli.simulate import simulate
from adagp.cli.sweep import sweep
from adagp.cli.train import train
from adagp.errors import AdagpError

app = typer.Typer(
    help="Train deep networks with predicted gradients, and know what that is worth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (train, compare, demo, plot, report, reproduce, simulate, sweep, pipeline, models, datasets):
    app.command()(command)


@app.callback()
def root() -> None:
    """Train deep networks with predicted gradients, and know what that is worth."""


def main() -> None:
    """Run the program. What a user did wrong is told in a line or two, with exit code 2."""
    keep_freed_memory()
    try:
        app()
    except AdagpError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
