"""Things named in text as `package.module:name`: our own builders, and users' models, methods and plugins."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    with faults_as(error, f"cannot import '{module_name}' of '{reference}'"):
        module = import_users_module(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        raise error(f"module '{module_name}' has no {kind} '{attribute}' (from '{reference}').")
    if not callable(found):
        raise error(f"'{reference}' is of type {type(found).__name__}, which cannot be called.")
    return found


@contextmanager
def faults_as(error: type[AdagpError], text: str) -> Iterator[None]:
    """Raise `error` with `text` and the reason for whatever goes wrong in a user's code, an exit of the program included."""
    try:
        yield
    except (KeyboardInterrupt, AdagpError):
        raise
    except BaseException as fault:
        raise error(f"{text}: {type(fault).__name__}{f': {fault}' if str(fault) else '.'}") from fault


def import_users_module(name: str) -> ModuleType:
    """Import a module, looked for in the current directory too, as `python -m` does and console scripts do not."""
    current = str(Path.cwd())
    if current not in sys.path:
        sys.path.insert(0, current)
    return importlib.import_module(name)
