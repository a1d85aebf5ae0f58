"""Users' code: functions and classes named as `package.module:name`, and plugins.

A plugin is a module that registers methods, schedules, dataflows, pipelines, tasks, data sets or models. It is named on the
command line (`--plugin package.module`), or installed with an entry point in the group `adagp`. A run folder lists the plugins
of its run, but none is loaded because a folder lists it.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from adagp.errors import AdagpError, OptionError


def import_reference(reference: str, *, what: str, kind: str, error: type[AdagpError] = OptionError) -> Any:
    """Return the callable that `reference` names as `package.module:name`.

    Errors are of type `error`; their text describes `what` (such as "a model of your own") and its `kind` (such as "function").
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise error(f"cannot read '{reference}'; {what} is named as package.module:{kind}.")
    with faults_as(error, f"cannot import '{module_name}' of '{reference}'"):
        module = import_users_module(module_name)
    target = getattr(module, attribute, None)
    if target is None:
        raise error(f"module '{module_name}' has no {kind} '{attribute}' (from '{reference}').")
    if not callable(target):
        raise error(f"'{reference}' is of type {type(target).__name__}, which cannot be called.")
    return target


@contextmanager
def faults_as(error: type[AdagpError], text: str) -> Iterator[None]:
    """Turn any exception of users' code, SystemExit included, into `error` with `text` and the reason."""
    try:
        yield
    except (KeyboardInterrupt, AdagpError):
        raise
    except BaseException as fault:
        raise error(f"{text}: {type(fault).__name__}{f': {fault}' if str(fault) else '.'}") from fault


def import_users_module(name: str) -> ModuleType:
    """Import a module, also from the current directory, as `python -m` does and console scripts do not."""
    current = str(Path.cwd())
    if current not in sys.path:
        sys.path.insert(0, current)
    return importlib.import_module(name)


GROUP = "adagp"
FLAG = "--plugin"
_loaded: list[str] = []


def loaded_plugins() -> list[str]:
    """Return the plugins named on the command line, in their order."""
    return list(_loaded)


def load_plugin(name: str) -> None:
    """Import the plugin `name`."""
    with faults_as(OptionError, f"cannot load the plugin '{name}'"):
        import_users_module(name)
    if name not in _loaded:
        _loaded.append(name)


def load_installed_plugins() -> None:
    """Load the plugins of installed packages."""
    for point in metadata.entry_points(group=GROUP):
        with faults_as(OptionError, f"cannot load the installed plugin '{point.name}' ({point.value})"):
            point.load()


def take_plugins(words: Sequence[str]) -> list[str]:
    """Load each `--plugin package.module` of a command line; return the other words."""
    left: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, name = word.partition("=")
        if flag != FLAG:
            left.append(word)
            continue
        name = name if equals else next(remaining, "")
        if not name:
            raise OptionError(f"{FLAG} needs the name of a module: {FLAG} package.module.")
        load_plugin(name)
    return left
