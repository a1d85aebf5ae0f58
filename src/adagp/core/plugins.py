"""Modules of users that register methods, schedules, dataflows, pipelines, tasks, data sets and models of their own.

They are named on the command line (`--plugin package.module`), or found by themselves where an installed package has an
entry point in the group `adagp`. A run folder names the plugins of its run; none is ever loaded because a folder says so.
"""

from collections.abc import Sequence
from importlib import metadata

from adagp.core.references import faults_as, import_users_module
from adagp.errors import OptionError

GROUP = "adagp"
FLAG = "--plugin"
_loaded: list[str] = []


def loaded_plugins() -> list[str]:
    """Return the plugins that were named so far, in their order; those of installed packages load by themselves."""
    return list(_loaded)


def load_plugin(name: str) -> None:
    """Import the module `name`, which registers what it has; whatever goes wrong there is the answer to the user."""
    with faults_as(OptionError, f"cannot load the plugin '{name}'"):
        import_users_module(name)
    if name not in _loaded:
        _loaded.append(name)


def load_installed_plugins() -> None:
    """Load the entry points of installed packages."""
    for point in metadata.entry_points(group=GROUP):
        with faults_as(OptionError, f"cannot load the installed plugin '{point.name}' ({point.value})"):
            point.load()


def take_plugins(words: Sequence[str]) -> list[str]:
    """Load every `--plugin package.module` among the words of a command line; return the other words."""
    left: list[str] = []
    given = iter(words)
    for word in given:
        flag, equals, name = word.partition("=")
        if flag != FLAG:
            left.append(word)
            continue
        name = name if equals else next(given, "")
        if not name:
            raise OptionError(f"{FLAG} needs the name of a module: {FLAG} package.module.")
        load_plugin(name)
    return left
