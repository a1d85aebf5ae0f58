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
        raise ModelError(f"cannot import '{module_name}' of '{reference}': {type(fault).__name__}: {fault}") from fault
    function = getattr(module, attribute, None)
    if function is None:
        raise ModelError(f"module '{module_name}' has no function '{attribute}' (from '{reference}').")
    if not callable(function):
        raise ModelError(f"'{reference}' is of type {type(function).__name__}, which cannot be called.")
    result: Callable[..., Any] = function
    return result


def call_with_accepted(function: Callable[..., Any], options: Mapping[str, Any], reference: str) -> Any:
    """Call `function` with those of `options` that it accepts by keyword: all, if it takes `**options`.

    A parameter without default that is not among `options` is refused by name.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**options)
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    missing = [item.name for item in named if item.default is item.empty and item.name not in options]
    if missing:
        raise ModelError(
            f"'{reference}' needs the argument '{missing[0]}', which has no default; given are {', '.join(options)}."
        )
    return function(**{item.name: options[item.name] for item in named if item.name in options})
