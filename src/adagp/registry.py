"""A name -> thing table that refuses duplicates and answers an unknown name with the options."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from adagp.errors import OptionError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name, in the order they were added.

    >>> colours = Registry[int]("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["red"]
    1
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Enter `thing` under `name` and return it; a name is given once."""
        if name in self._things:
            raise OptionError(f"{self.kind} '{name}' is registered already; pick another name.")
        self._things[name] = thing
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that enters what it decorates under `name`."""
        return lambda thing: self.add(name, thing)

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._things) from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)
