"""Options on the command line. Those of runs are made of their declarations: `train` and `compare` have the same ones."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any

import typer

from adagp.options import Option
from adagp.run.config import help_text


def option(text: str, *flags: str, panel: str | None = None, unset: str = "") -> Any:
    """Return an option of a command with its line of help; `unset` says what it is to leave out one whose default is None."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, show_default=unset or True)


def switch(flag: str, text: str, *, panel: str | None = None) -> Any:
    """Return an option that is off unless it is given."""
    return typer.Option(flag, help=text, rich_help_panel=panel, show_default="off")


def with_options(command: Callable[..., None], options: Iterable[Option]) -> Callable[..., None]:
    """Return `command` with `options` before its own parameters.

    Those that the user gave on the command line, and no others, arrive by name in its parameter `given`.
    """
    declared = {option.name: option for option in options}
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "given"]
    parameters = [_parameter(option) for option in declared.values()]
    parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def run(*, context: typer.Context, **values: Any) -> None:
        given = {name: values.pop(name) for name in declared}
        command(given={name: value for name, value in given.items() if _is_given(context, name)}, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def given_options(context: typer.Context) -> set[str]:
    """Return the names of the options that the user gave on the command line."""
    return {name for name in context.params if _is_given(context, name)}


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(option: Option) -> inspect.Parameter:
    declarations = [f"{option.flag}/--no-{option.flag[2:]}"] if option.kind is bool else [option.flag]
    shown: bool | str = option.unset if option.default is None else True
    details = typer.Option(*declarations, help=help_text(option), rich_help_panel=option.panel, show_default=shown)
    kind: Any = option.kind | None if option.optional else option.kind
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=Annotated[kind, details]
    )
