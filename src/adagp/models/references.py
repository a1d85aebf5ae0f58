"""Builders of models, named in text as `package.module:function`: our own and the users'."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from adagp.core.references import import_reference
from adagp.errors import ModelError


def import_function(reference: str) -> Callable[..., Any]:
    """Return the function that `reference` names as `package.module:function`."""
    function: Callable[..., Any] = import_reference(
        reference, what="a model of your own", kind="function", error=ModelError
    )
    return function


def parameters_of(function: Callable[..., Any], reference: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `function`; one that does not tell them is refused."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ModelError(
            f"'{reference}' does not say which arguments it takes; a model is built by a function."
        ) from None


def accepted(function: Callable[..., Any], options: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """Return those of `options` that `function` accepts by keyword: all, if it takes `**options`.

    A parameter without default that is not among `options` is refused by name.
    """
    parameters = parameters_of(function, reference).values()
    by_keyword = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    missing = [item.name for item in by_keyword if item.default is item.empty and item.name not in options]
    if missing:
        raise ModelError(
            f"'{reference}' needs the argument '{missing[0]}', which has no default; given are {', '.join(options)}."
        )
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return dict(options)
    return {item.name: options[item.name] for item in by_keyword if item.name in options}
