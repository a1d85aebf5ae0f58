"""Things by name: tables that papers and plug-ins add to, users' own functions and classes, and plug-ins.

A table rejects duplicates, and the error for an unknown name lists the allowed ones. Tables that papers and plug-ins add to are
`extensible`: they import the modules that add to them when they are first read, so users need not import a paper to use it, and
papers that are not needed are not imported.

Users' functions and classes are named as `package.module:name`. A plug-in is a module that registers methods, schedules,
dataflows, pipelines, tasks, data sets or models. It is named on the command line (`--plugin package.module`), or installed with
an entry point in the group `adagp`. A run folder lists the plug-ins of its run, but none is loaded because a folder lists it.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from adagp.errors import AdagpError, OptionError, unknown_name

T = TypeVar("T")

_providers: defaultdict[str, list[str]] = defaultdict(list)


def provide(kind: str, module: str) -> None:
    """Declare that importing `module` adds things to the table of this kind; it is imported when that table is first read.

    A paper or plug-in calls it for modules that nothing else needs, so that they are not imported in vain.
    """
    if module not in _providers[kind]:
        _providers[kind].append(module)


def providers(kind: str) -> tuple[str, ...]:
    """Return the modules that papers and plug-ins declared for a kind, in the order of declaration."""
    import_module("adagp.papers")
    return tuple(_providers[kind])


class Registry(Generic[T]):
    """Things of one kind by name, in the order they were added.

    >>> colours = Registry[int]("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["red"]
    1
    """

    def __init__(
        self, kind: str, *, extensible: bool = False, suggest: Callable[[str], str | None] = lambda name: None
    ) -> None:
        """Create an empty table. `suggest` returns the name that an error proposes for an unknown one; None: the nearest."""
        self.kind = kind
        self._suggest = suggest
        self.extensible = extensible
        self._things: dict[str, T] = {}
        self._imported = 0

    def add(self, name: str, entry: T) -> T:
        """Add `entry` under `name` and return it; a name can be used once."""
        if name in self._things:
            raise OptionError(f"{self.kind} '{name}' is registered already; pick another name.")
        self._things[name] = entry
        return entry

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds the decorated function or class under `name`."""
        return lambda entry: self.add(name, entry)

    def __getitem__(self, name: str) -> T:
        try:
            return self._all[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._things, self._suggest(name)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def _all(self) -> dict[str, T]:
        """The things, after all modules that provide some have been imported."""
        if self.extensible:
            while self._imported < len(modules := providers(self.kind)):
                self._imported += 1  # before the import, which may read this table
                import_module(modules[self._imported - 1])
        return self._things


def import_reference(reference: str, *, what: str, kind: str, error: type[AdagpError] = OptionError) -> Any:
    """Return the callable that `reference` names as `package.module:name`.

    Errors are of type `error`; their text contains `what` (such as "a model of your own") and `kind` (such as "function").
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
    """Import a module, also from the current directory, which console scripts do not search."""
    current = str(Path.cwd())
    if current not in sys.path:
        sys.path.insert(0, current)
    return import_module(name)


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
    from importlib import metadata  # late: only the command line loads plug-ins

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
