"""Options of the commands: the command line, its help and its checks follow from the declarations (`adagp.core.options`).

A parameter of a command declares its option by its annotation; if its type is a dataclass, the fields declare theirs.
Commands that share options share the dataclass, or the annotation. Options that are declared elsewhere (those of runs,
accelerators, axes) are passed to `with_options`; the command gets those that the user set by name in its parameter
`overrides`.

`adagp train --help` shows the options that most people need, with examples; `--help-all` shows all of them.

Shells complete the names of models, data sets, methods and the like, and the choices of options, after
`adagp --install-completion`. Files are left to the shell.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from adagp.core.methods import METHODS
from adagp.core.options import Option, annotated_option, option, switch
from adagp.program.figures.style import check_picture_path

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
"""The parameters that the short help of a command lists."""
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
    "worth": ("adagp worth runs/worth --plot worth.svg", "adagp worth --map runs/worth --plot map.svg"),
    "demo": ("adagp demo --seeds 1 --batches 88",),
    "plot": ("adagp plot runs/one --out pictures",),
    "report": ("adagp report runs/one --out one.html", "adagp report runs --watch"),
    "reproduce": (
        "adagp reproduce list",
        "adagp reproduce adagp-figure17 ratio-sweep",
        "adagp reproduce adagp-table1 --budget short --data-dir data",
    ),
    "sweep": ("adagp sweep --models vgg13,resnet50 --datasets cifar10 --dataflows ws,rs --out sweep.csv",),
    "explore": (
        "adagp explore vgg13 --array 8x8,16x16 --buffer 64k..256k --dataflow ws,os",
        "adagp explore digits_cnn --dataset digits --array 8x8,16x16 --objective cycles,energy --out points.csv",
    ),
    "pipeline": (
        "adagp pipeline --schedule dapple --devices 4 --micro-batches 4 --phases GP,BP",
        "adagp pipeline --schedule zb-h1 --devices 4 --micro-batches 8 --plot steps.svg",
    ),
    "validate": ("adagp validate vgg13", "adagp validate timm:resnet18 --method feedback --batch-size 256"),
    "methods": ("adagp methods", "adagp methods --json"),
    "models": ("adagp models", "adagp models --width 0.25 --json"),
    "datasets": ("adagp datasets --data-dir data",),
    "rtl generate": ("adagp rtl generate --design max --array 12x15 --format int16 --out chip",),
    "rtl simulate": ("adagp rtl simulate --array 4x4 --operation forward --size 20x30x40 --vcd wave.vcd",),
    "rtl run": ("adagp rtl run --network 12-10-6 --design max --phases bp,gp",),
    "rtl synthesize": (
        "adagp rtl synthesize --array 4x4 --design baseline",
        "adagp rtl synthesize --target liberty --design all --json",
    ),
    "rtl place": ("adagp rtl place --array 4x4 --format int8 --design baseline --value-words 1024 --sum-words 512",),
    "rtl power": ("adagp rtl power --array 4x4 --design baseline --json",),
}
"""The examples at the end of a command's help."""
WHOLE = "adagp.whole_help"
LONGEST_WORD = 40
"""The characters that fit into the column of texts in a terminal of 80 characters."""
Complete = Callable[[str], list[str]]


def epilog(command: str, text: str = "") -> str:
    """Return the text below the help of a command: its examples, one line each, and `text`."""
    return "\n\n".join(["Examples:", *EXAMPLES[command], *([text] if text else [])])


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
    usual_options = USUAL.get(command or "")
    hidden = []
    has_help_all = any(parameter.name == "help_all" for parameter in parameters)
    if usual_options is not None and has_help_all and not context.meta.get(WHOLE):
        shown = {*usual_options, "help", "help_all"}
        hidden = [item for item in parameters if item.name not in shown and not getattr(item, "hidden", True)]
    for parameter in hidden:
        parameter.hidden = True
    try:
        yield
    finally:
        for parameter in hidden:
            parameter.hidden = False


@contextmanager
def short_switches(parameters: list[Any]) -> Iterator[None]:
    """Leave out `--no-...` of switches that are off while help is written: its column would cut the names of options."""
    off = [(item, item.secondary_opts) for item in parameters if item.default is False and item.secondary_opts]
    for parameter, _ in off:
        parameter.secondary_opts = []
    try:
        yield
    finally:
        for parameter, flags in off:
            parameter.secondary_opts = flags


def offer(names: Iterable[str] | Callable[[], Iterable[str]]) -> Complete:
    """Return a completion function: it gets the beginning of a word and returns the `names` that start with it.

    If the word is a list with commas, the function completes its last name.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        known = names() if callable(names) else names
        return [f"{before}{comma}{name}" for name in known if name.startswith(word)]

    return complete


def imported(module: str, name: str) -> Callable[[], Iterable[str]]:
    """Return a function that imports and returns the names `module.name`, so that only commands that need them import them."""
    return lambda: cast(Iterable[str], getattr(import_module(module), name))


def experiments() -> Iterable[str]:
    """Return the names of the experiments, and `list` and `all`."""
    from adagp.program.reproduce.experiment import all_experiments

    return ["list", "all", *(experiment.name for experiment in all_experiments())]


DATASETS, DESIGNS = imported("adagp.data.registry", "DATASETS"), imported("adagp.hw.simulate", "DESIGNS")
MODELS = imported("adagp.models.registry", "MODELS")
NAMES: dict[str, Iterable[str] | Callable[[], Iterable[str]]] = {
    "dataset": DATASETS,
    "datasets": DATASETS,
    "design": DESIGNS,
    "designs": DESIGNS,
    "log": imported("adagp.program.loggers", "LOGGERS"),
    "method": METHODS,
    "methods": METHODS,
    "model": MODELS,
    "models": MODELS,
    "preset": imported("adagp.hw.hardware_file", "PRESETS"),
}
"""The names that completion offers, by option."""


def completion_of(option: Option) -> Complete | None:
    """Return the completion function for the values of an option; None if there is nothing to offer."""
    if option.choices is not None:
        return offer(option.choices)
    return offer(NAMES[option.name]) if option.name in NAMES else None


OUTPUT = "Output"


Json = Annotated[bool, switch("--json", "Print the result as JSON.", panel=OUTPUT)]
Picture = Annotated[
    Path | None, option("Write a plot to FILE.svg or FILE.png.", panel=OUTPUT, unset="none", also=check_picture_path)
]
DataFolder = Annotated[Path | None, option("Folder of the data sets.", panel="Data", unset="data")]
Download = Annotated[bool, switch("--download", "Download the data set if it is missing.", panel="Data")]


def own_options(command: Callable[..., None]) -> dict[str, Option]:
    """Return the options that the parameters of a command declare, by their names."""
    options = (annotated_option(item.name, item.annotation, item.default) for item in _flat_parameters(command))
    return {option.name: option for option in options if option is not None}


def _flat_parameters(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command, with the fields of a dataclass instead of its parameter."""
    for parameter in inspect.signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            hints = get_type_hints(parameter.annotation, include_extras=True)
            for field in fields(parameter.annotation):
                yield inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
                )
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def with_options(command: Callable[..., None], options: Iterable[Option] = ()) -> Callable[..., None]:
    """Return `command` in the form that typer needs: with `options` instead of `overrides`, and all values checked first."""
    more = {option.name: option for option in options}
    own = own_options(command)
    parameters: list[inspect.Parameter] = []
    for parameter in _flat_parameters(command):
        if parameter.name == "overrides":
            parameters += map(_parameter, more.values())
        else:
            parameters.append(_parameter(own[parameter.name]) if parameter.name in own else parameter)
    if set(USUAL.get(command.__name__, ("-",))) <= {parameter.name for parameter in parameters}:  # not `rtl simulate`
        flag = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
        parameters.append(flag)
    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    annotations = {name: item.annotation for name, item in inspect.signature(command).parameters.items()}
    groups: dict[str, Any] = {name: kind for name, kind in annotations.items() if is_dataclass(kind)}

    @wraps(command)
    def run(*, context: typer.Context, **values: Any) -> None:
        values.pop("help_all", None)
        for declared in own.values():
            declared.check(values[declared.name])
        others = {name: values.pop(name) for name in more}
        overrides = {name: value for name, value in others.items() if _is_set(context, name)}
        for name, value in overrides.items():
            more[name].check(value)
        if more:
            values["overrides"] = overrides
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _is_set(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter for typer. The help shows a default in words if it is empty or a switch that is off."""
    flags = option.flags or ((f"{option.flag}/--no-{option.flag[2:]}",) if option.kind is bool else (option.flag,))
    in_words = option.default in (None, "") or (option.kind is bool and option.flags)
    details = typer.Option(
        *flags,
        help=option.help,
        rich_help_panel=option.panel or None,
        show_default=option.unset if in_words else _spaced(option.default),
        autocompletion=completion_of(option),
    )
    kind: Any = option.kind | None if option.optional else option.kind
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=Annotated[kind, details]
    )


def _spaced(default: Any) -> str | bool:
    """Return how help shows a default: unchanged, but a list that is wider than the column gets spaces, to be wrapped at."""
    is_long = isinstance(default, str) and "," in default and len(default) > LONGEST_WORD
    return default.replace(",", ", ") if is_long else True


HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


SYSTEM_NAMES = "{systems}"
"""The placeholder in help texts for the names of the training systems, which are looked up when the help is written."""


def completed_help(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command as help shows them: flags without a value type, and with the names of systems."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if SYSTEM_NAMES in (getattr(parameter, "help", None) or ""):
            systems = imported("adagp.hw.systems", "SYSTEMS")()
            parameter.help = parameter.help.replace(SYSTEM_NAMES, ", ".join(systems))
    return parameters


class Command(TyperCommand):
    """A command whose help lists the usual options only."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: the usual options, or all of them with --help-all."""
        with usual_options_only(self.name, ctx, self.params), short_switches(self.params):
            super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, including --help, as help shows them."""
        return completed_help(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, including --help, as help shows them."""
        return completed_help(super().get_params(ctx))
