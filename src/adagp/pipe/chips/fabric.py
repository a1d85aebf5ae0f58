"""How chips are joined: a ring, a torus of two dimensions or a switch; which links a message takes, and how many share one.

Every link carries `Link.bandwidth` in each direction. Messages that are sent at the same time share the links on their routes:
n bytes from each of several chips arrive after the latencies of the longest route, and after the busiest link has carried all
that crosses it.

    ring      chip i is joined to i - 1 and i + 1; a message takes the shorter way round
    torus     rows and columns of rings; a message goes along the row, then along the column. Chips are numbered in a snake:
              every second row backwards, so that neighbours in number are neighbours in the torus
    switch    each chip has one link to a switch that never blocks; the latency is that of the whole way
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isqrt

from adagp.errors import OptionError, unknown_name

Pair = tuple[int, int]
"""Sender and receiver of a message."""
Wire = tuple[object, object]
"""One direction of a link."""


@dataclass(frozen=True)
class Traffic:
    """What delays messages that are sent at once: the latencies of the longest route, and the messages on the busiest link."""

    hops: int
    sharing: int


@dataclass(frozen=True)
class Topology:
    """`chips` joined as a `kind` of fabric; a torus has `sides` (rows and columns), nearly equal ones unless given."""

    kind: str = "switch"
    chips: int = 1
    sides: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.kind not in FABRICS:
            raise unknown_name("fabric", self.kind, list(FABRICS))
        if self.chips < 1:
            raise OptionError(f"a fabric of {self.chips} chips connects nothing; give 1 or more.")
        if self.sides is not None and self.kind != "torus":
            raise OptionError(f"a {self.kind} has no sides; leave out '{self.sides[0]}x{self.sides[1]}'.")
        if self.sides is not None and self.sides[0] * self.sides[1] != self.chips:
            rows, columns = self.sides
            raise OptionError(f"a torus of {rows}x{columns} has {rows * columns} chips, not {self.chips}.")

    def __str__(self) -> str:
        return f"torus {self.rows}x{self.columns}" if self.kind == "torus" else self.kind

    @cached_property
    def rows(self) -> int:
        """Rows of a torus."""
        if self.sides is not None:
            return self.sides[0]
        return next(rows for rows in range(isqrt(self.chips), 0, -1) if self.chips % rows == 0)

    @property
    def columns(self) -> int:
        """Columns of a torus."""
        return self.chips // self.rows

    def place(self, chip: int) -> Pair:
        """Return the row and the column of a chip in a torus."""
        row, column = divmod(chip, self.columns)
        return row, self.columns - 1 - column if row % 2 else column

    def route(self, sender: int, receiver: int) -> list[Wire]:
        """Return the wires that a message takes."""
        return list(FABRICS[self.kind](self, sender, receiver)) if sender != receiver else []

    def traffic(self, pairs: tuple[Pair, ...]) -> Traffic:
        """Return the traffic of messages of one size between `pairs`, sent at the same time."""
        load: Counter[Wire] = Counter()
        hops = 0
        for sender, receiver in pairs:
            wires = self.route(sender, receiver)
            load.update(wires)
            hops = max(hops, len(wires))
        return Traffic(1 if self.kind == "switch" and hops else hops, max(load.values(), default=0))


def _around(start: int, end: int, size: int) -> Iterator[int]:
    """Yield the places of a ring of `size` from `start` to `end`, the shorter way."""
    ahead = (end - start) % size
    step = 1 if ahead <= size - ahead else -1
    position = start
    yield position
    while position != end:
        position = (position + step) % size
        yield position


def _ring(topology: Topology, sender: int, receiver: int) -> Iterator[Wire]:
    places = list(_around(sender, receiver, topology.chips))
    return iter(pairwise(places))


def _torus(topology: Topology, sender: int, receiver: int) -> Iterator[Wire]:
    (row, column), (to_row, to_column) = topology.place(sender), topology.place(receiver)
    places = [(row, at) for at in _around(column, to_column, topology.columns)]
    places += [(at, to_column) for at in _around(row, to_row, topology.rows)][1:]
    return iter(pairwise(places))


def _switch(topology: Topology, sender: int, receiver: int) -> Iterator[Wire]:
    yield sender, "switch"
    yield "switch", receiver


FABRICS: Mapping[str, Callable[[Topology, int, int], Iterator[Wire]]] = {
    "ring": _ring,
    "torus": _torus,
    "switch": _switch,
}
"""From a topology, a sender and a receiver to the wires between them."""


def parse_fabric(text: str, chips: int) -> Topology:
    """Return the fabric that `text` names: ring, torus, torus:ROWSxCOLUMNS or switch."""
    kind, colon, sides = text.strip().partition(":")
    if not colon:
        return Topology(kind, chips)
    rows, by, columns = sides.partition("x")
    if not (by and rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise OptionError(f"cannot read the fabric '{text}'; write {', '.join(FABRICS)}, or for example torus:4x8.")
    return Topology(kind, chips, (int(rows), int(columns)))
