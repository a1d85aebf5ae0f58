"""A name -> thing table that rejects duplicates and answers an unknown name with the allowed ones.

Tables that papers and plug-ins add to are `extensible`. They import what adds to them when they are first read, so that nobody
has to import a paper to use it, and none is imported where it is not needed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Generic, TypeVar

from adagp.errors import OptionError, unknown_name

T = TypeVar("T")

_providers: defaultdict[str, list[str]] = defaultdict(list)


def provide(kind: str, module: str) -> None:
    """Declare that importing `module` adds things to the table of this kind; it is imported when that table is first read.

    A paper, or a plug-in, calls it for modules that are not worth importing for anything else.
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
        """Create an empty table. `suggest` gives what an unknown name may stand for, if that is not in the table."""
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
        """Return a decorator that enters what it decorates under `name`."""
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
        """The things, once everything that provides some has been imported."""
        if self.extensible:
            while self._imported < len(modules := providers(self.kind)):
                self._imported += 1  # before the import, which may read this table
                import_module(modules[self._imported - 1])
        return self._things
