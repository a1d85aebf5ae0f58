"""Things named in text as `package.module:name`: our own builders, and users' models, methods and plugins."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from adagp.errors import AdagpError, OptionError


def import_reference(reference: str, *, what: str, kind: str, error: type[AdagpError] = OptionError) -> Any:
    """Return the callable that `reference` names as `package.module:name`.

    Where that cannot be, raise `error`, whose text says that `what` (a model of your own) is a `kind` (function) there.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise error(f"cannot read '{reference}'; {what} is named as package.module:{kind}.")
    try:
        module = import_users_module(module_name)
    except Exception as fault:  # whatever the user's module does wrong at import is the answer to the user
        raise error(f"cannot import '{module_name}' of '{reference}': {type(fault).__name__}: {fault}") from fault
    found = getattr(module, attribute, None)
    if found is None:
        raise error(f"module '{module_name}' has no {kind} '{attribute}' (from '{reference}').")
    if not callable(found):
        raise error(f"'{reference}' is of type {type(found).__name__}, which cannot be called.")
    return found


def import_users_module(name: str) -> ModuleType:
    """Import a module, looked for in the current directory too, as `python -m` does and console scripts do not."""
    current = str(Path.cwd())
    if current not in sys.path:
        sys.path.insert(0, current)
    return importlib.import_module(name)
