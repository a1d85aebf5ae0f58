"""The command line: parse, make one call, print.

The module of a command is imported when that command is called, and torch when the command runs. If something outside the
program fails (a full disk, a closed output, too little memory), the program ends with one sentence.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from io import TextIOWrapper
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, NamedTuple, cast

import typer

from adagp._version import __version__
from adagp.cli.options import HELP_FLAGS, Command, CommandGroup, epilog, with_options
from adagp.core.escape import escaped
from adagp.core.files import reason
from adagp.core.memory import keep_freed_memory
from adagp.core.methods import find_method
from adagp.core.options import Option
from adagp.core.registry import load_installed_plugins, take_plugins
from adagp.errors import AdagpError, AdagpWarning, OptionError

EPILOG = (
    "Every command takes --plugin package.module: a module of yours that registers methods, schedules, dataflows, ..."
)
HELP = "Train deep networks with predicted gradients, and measure what that gains."

FAILED, READER_LEFT = 2, 1
"""Exit codes: an error, which is printed; standard output closed by its reader (`| head`), which is not."""
LONGEST_MESSAGE = 8000


class Entry(NamedTuple):
    """The module of a command in this package, and its help, which `adagp --help` shows without importing the module."""

    module: str
    help: str


COMMANDS = {
    "train": Entry("train", "Train a model with predicted gradients, or with plain backprop for comparison."),
    "compare": Entry(
        "compare",
        "Train several methods over several seeds, at equal batches and at equal cost, and report what each gains.",
    ),
    "worth": Entry(
        "compare",
        "Report how many BP batches a GP batch replaces in a comparison, what it costs on each platform, and where it pays.",
    ),
    "demo": Entry(
        "demo",
        "Compare backprop with predicted gradients on the built-in digits, and replay the runs on a modelled accelerator.",
    ),
    "plot": Entry("demo", "Plot loss and accuracy of runs with their phases, and the prediction quality of each site."),
    "report": Entry(
        "report",
        "Write a self-contained HTML page about runs: ranking, curves, quality by site, time, accelerator, pipelines.",
    ),
    "reproduce": Entry(
        "reproduce",
        "Reproduce the papers' experiments. Finished parts are kept: the same command continues after an interruption.",
    ),
    "simulate": Entry(
        "simulate",
        "Model cycles, speed-up and energy of a training run on an accelerator, for each of ADA-GP's designs.",
    ),
    "sweep": Entry(
        "explore",
        "Deprecated: use adagp explore --rows. Simulates every combination and writes a CSV row for each design.",
    ),
    "explore": Entry(
        "explore",
        "Simulate every point of a design space and print its Pareto front. Axes: lists, A..B (doubling), A..B:+STEP.",
    ),
    "pipeline": Entry(
        "pipeline", "Model steps, bubbles and stored activations of a device pipeline with ADA-GP, without running it."
    ),
    "validate": Entry(
        "validate",
        "Print which layers of a model a method predicts, what that costs in memory and work, and what cannot be trained.",
    ),
    "methods": Entry("catalogue", "List the methods: what each does, its default schedule and its options."),
    "models": Entry(
        "catalogue",
        "List the models: parameters, multiply-accumulates of a forward pass, sites, and the size of the predictor.",
    ),
    "datasets": Entry(
        "catalogue", "List the data sets: contents, where adagp looks for them, and which are installed."
    ),
    "rtl": Entry("rtl", "The accelerator as hardware: Verilog, cycle-accurate simulation, synthesis, power."),
}


def make_app(words: Sequence[str] | None = None) -> typer.Typer:
    """Return the program, with the options of all methods that are registered so far.

    If the command line `words` is given, only its command gets options: adding those of the others would take as long as most
    commands take.
    """
    app = typer.Typer(
        help=HELP,
        epilog="Begin with: adagp demo. Every command has examples: adagp train --help.",
        cls=CommandGroup,
        context_settings=HELP_FLAGS,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    named = [name for name in COMMANDS if words is not None and [name] == list(words[:1])]
    for name in named or COMMANDS:
        _add(app, name, whole=bool(named) or words is None)
    app.callback()(root)
    return app


def _add(app: typer.Typer, name: str, *, whole: bool) -> None:
    """Add a command to the program; if not `whole`, only its name and its help."""
    entry = COMMANDS[name]
    if not whole:
        app.command(name, help=entry.help)(_only_listed)
        return
    command, more = load_command(name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, help=entry.help)
    else:
        run = with_options(command, more)
        app.command(name, help=entry.help, epilog=epilog(name, EPILOG), cls=Command)(run)


def load_command(name: str) -> tuple[Callable[..., None] | typer.Typer, Sequence[Option]]:
    """Return the function of a command, or a program of several commands, and the options that are declared elsewhere."""
    module = import_module(f"adagp.cli.{COMMANDS[name].module}")
    more = getattr(module, "more_options", None)
    return getattr(module, name), more(name) if more else ()


def _only_listed() -> None:
    """Do nothing: a placeholder for commands that are only listed."""


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
        with flushed_output(), plain_warnings():
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
        find_method(name)  # registers it with its own options
    completing = any(name.endswith("_COMPLETE") for name in os.environ)  # completion needs the options of all commands
    make_app(None if completing else left)(left)


def named_methods(words: Sequence[str]) -> list[str]:
    """Return the methods that a command line names as package.module:Class."""
    names = [name for flag, name in pairwise(words) if flag == "--method"]
    names += [word.removeprefix("--method=") for word in words if word.startswith("--method=")]
    return [name for name in names if ":" in name]


def __getattr__(name: str) -> typer.Typer:
    """Return `app`, the program with all commands. It is made on first use, since that takes as long as most commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = make_app()
    return cast(typer.Typer, globals()["app"])


def check_streams() -> None:
    """Check that standard output is open, before any work; output to a closed standard error is dropped."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    if sys.stdout is None:
        raise OptionError("standard output is closed; redirect it, for example with >/dev/null.")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # do not fail on characters that the encoding lacks


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print adagp's own warnings as sentences, without the line of code that issued them."""
    default_format = warnings.formatwarning

    def plain(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        is_adagp_warning = issubclass(category, AdagpWarning)
        return (
            f"warning: {message}\n" if is_adagp_warning else default_format(message, category, filename, lineno, line)
        )

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = default_format


@contextmanager
def flushed_output() -> Iterator[None]:
    """Flush standard output at the end, so that a failure can be reported."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def drop_output() -> None:
    """Drop output that could not be written; otherwise Python would try again at exit, and print an error."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sentence(error: BaseException) -> str | None:
    """Return the message for an error; None if it is a bug in adagp, which needs its traceback."""
    if isinstance(error, AdagpError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        target = f"'{error.filename}'" if error.filename is not None else "a file or standard output"
        word = "write to" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS) else "use"
        return f"cannot {word} {target}: {reason(error)}."
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if out_of_memory or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "out of memory; use a smaller model, batch size or width."
    return None


def print_error(text: str) -> None:
    """Print an error, if standard error is open."""
    text = escaped(text)
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[: LONGEST_MESSAGE // 2]} ... {text[-LONGEST_MESSAGE // 2 :]}"
    text = f"error: {text}"
    with suppress(OSError):
        if sys.stderr.isatty():
            width = get_terminal_size().columns
            text = fill(text, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        # NO_COLOR (no-color.org) is not handled by click.
        plain = bool(os.environ.get("NO_COLOR"))
        typer.echo(text if plain else typer.style(text, fg=typer.colors.RED), err=True)
