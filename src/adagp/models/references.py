"""Functions named in text as `package.module:function`: our own builders and the users'."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from adagp.errors import ModelError


def import_function(reference: str) -> Callable[..., Any]:
    """Return the function that `reference` names as `package.module:function`."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"cannot read '{reference}'; a model of your own is named as package.module:function.")
    try:
        module = importlib.import_module(module_name)
    except Exception as fault:  # whatever the user's module does wrong at import is the answer to the user
        kind = type(fault).__name__
        raise ModelError(f"cannot import '{module_name}' of '{reference}': {kind}: {fault}") from fault
    function = getattr(module, attribute, None)
    if function is None:
        raise ModelError(f"module '{module_name}' has no function '{attribute}' (from '{reference}').")
    if not callable(function):
        raise ModelError(f"'{reference}' is of type {type(function).__name__}, which cannot be called.")
    result: Callable[..., Any] = function
    return result


def accepted(function: Callable[..., Any], options: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """Return those of `options` that `function` accepts by keyword: all, if it takes `**options`.

    A parameter without default that is not among `options` is refused by name.
    """
    parameters = inspect.signature(function).parameters.values()
    by_keyword = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    missing = [item.name for item in by_keyword if item.default is item.empty and item.name not in options]
    if missing:
        raise ModelError(
            f"'{reference}' needs the argument '{missing[0]}', which has no default; given are {', '.join(options)}."
        )
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return dict(options)
    return {item.name: options[item.name] for item in by_keyword if item.name in options}
