"""The command line: parse, make one call, print. Commands import torch only when they run."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from typing import Annotated, cast

import typer

from adagp._version import __version__
from adagp.cli.catalogue import datasets, methods, models
from adagp.cli.compare import compare, worth
from adagp.cli.demo import demo, plot
from adagp.cli.exits import FAILED, READER_LEFT, check_streams, drop_output, flushed_output, print_error, sentence
from adagp.cli.explore import ACCELERATOR_OPTIONS, AXIS_OPTIONS, explore, sweep
from adagp.cli.options import HELP_FLAGS, Command, CommandGroup, with_options
from adagp.cli.pipeline import CONSTANTS, MODELLED, pipeline
from adagp.cli.report import report
from adagp.cli.reproduce import reproduce
from adagp.cli.rtl import rtl
from adagp.cli.short_help import epilog
from adagp.cli.simulate import simulate
from adagp.cli.train import train
from adagp.core.memory import keep_freed_memory
from adagp.core.methods import find_method
from adagp.core.options import Option
from adagp.core.plugins import load_installed_plugins, take_plugins
from adagp.errors import AdagpError
from adagp.hw.settings import SETTINGS
from adagp.program.compare.methods import COMPARED_EPOCHS, DEFAULTS
from adagp.program.run.config import help_text, known_options

EPILOG = (
    "Every command takes --plugin package.module: a module of yours that registers methods, schedules, dataflows, ..."
)
COMPARED = {**DEFAULTS, "epochs": COMPARED_EPOCHS}
HELP = "Train deep networks with predicted gradients, and measure what that gains."
COMMANDS = (
    *(train, compare, worth, demo, plot, report, reproduce),
    *(simulate, sweep, explore, pipeline, methods, models, datasets),
)


def make_app(words: Sequence[str] = ()) -> typer.Typer:
    """Return the program, with the options of all methods that are registered by now.

    Where `words` begin with a command, it is the only one: the others would take as long to make as most commands take.
    """
    app = typer.Typer(
        help=HELP,
        cls=CommandGroup,
        context_settings=HELP_FLAGS,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    named = [command for command in COMMANDS if [command.__name__] == list(words[:1])]
    for command in named or COMMANDS:
        app.command(epilog=epilog(command.__name__, EPILOG), cls=Command)(
            with_options(command, declared_elsewhere(command))
        )
    if not named:
        app.add_typer(rtl)
    app.callback()(root)
    return app


def declared_elsewhere(command: Callable[..., None]) -> Sequence[Option]:
    """Return the options of a command that its parameters do not declare: those of runs, of accelerators, of axes."""
    if command is simulate:
        return tuple(SETTINGS.values())
    others: dict[Callable[..., None], Sequence[Option]] = {
        sweep: ACCELERATOR_OPTIONS,
        explore: AXIS_OPTIONS,
        pipeline: (*CONSTANTS.values(), *MODELLED.values()),
    }
    if command not in (train, compare):
        return others.get(command, ())
    known = [replace(option, help=help_text(option)) for option in known_options().values()]
    if command is train:
        return known
    compared = [option for option in known if option.compared != "fixed"]
    return [replace(option, default=COMPARED.get(option.name, option.default)) for option in compared]


def _show_versions(requested: bool) -> None:
    if requested:
        typer.echo(f"adagp {__version__} (torch {metadata.version('torch')}, Python {sys.version.split()[0]})")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the versions and exit.", callback=_show_versions, is_eager=True)
    ] = False,
) -> None:
    """Train deep networks with predicted gradients, and measure what that gains."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the program. Users' errors are printed in a line or two, with exit code 2."""
    keep_freed_memory()
    try:
        check_streams()
        with flushed_output():
            _run(sys.argv[1:] if words is None else words)
    except BrokenPipeError:
        drop_output()
        sys.exit(READER_LEFT)
    except Exception as error:
        text = sentence(error)
        if text is None:
            raise
        if not isinstance(error, AdagpError):
            drop_output()
        print_error(text)
        sys.exit(FAILED)


def _run(words: Sequence[str]) -> None:
    load_installed_plugins()
    left = take_plugins(words)
    for name in named_methods(left):
        find_method(name)  # so that its own options are known
    make_app(left)(left)


def named_methods(words: Sequence[str]) -> list[str]:
    """Return the methods that a command line names as package.module:Class."""
    names = [name for flag, name in pairwise(words) if flag == "--method"]
    names += [word.removeprefix("--method=") for word in words if word.startswith("--method=")]
    return [name for name in names if ":" in name]


def __getattr__(name: str) -> typer.Typer:
    """Return `app`, the program with all commands; it is made when it is first needed: that takes as long as most commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = make_app()
    return cast(typer.Typer, globals()["app"])
