"""Lifetimes of data in CAMEL's memory, event by event: the oracle of the closed form in `adagp.papers.camel.hardware`."""

from collections.abc import Iterator
from dataclasses import dataclass

from adagp.errors import ModelError


@dataclass(frozen=True)
class Event:
    """A datum is written, or read, at a time."""

    time: float
    name: str
    writes: bool


def forward_events(block: int, start: float, time: float) -> Iterator[Event]:
    """Yield what happens to data in a block's forward pass, which takes 2 t."""
    x1, x2, y1, y2 = (f"{name} of {place}" for place in (block, block + 1) for name in ("x1", "x2"))
    yield Event(start + time, x1, False)  # F1 has read it
    yield Event(start + time, x2, False)  # and this was added
    yield Event(start + time, y2, True)
    yield Event(start + 2 * time, y2, False)
    yield Event(start + 2 * time, x1, False)
    yield Event(start + 2 * time, y1, True)


def backward_events(block: int, start: float, time: float) -> Iterator[Event]:
    """Yield what happens in a block's backward pass, which takes 6 t: F2, its two gradients, F1, its two gradients."""
    x1, x2, y1, y2 = (f"back {name} of {place}" for place in (block, block + 1) for name in ("x1", "x2"))
    g1, g2, d1, d2 = (f"gradient of {name} of {place}" for place in (block, block + 1) for name in ("x1", "x2"))
    yield Event(start + time, y2, False)  # F2 again
    yield Event(start + time, y1, False)
    yield Event(start + time, x1, True)
    yield Event(start + 2 * time, d1, False)  # v
    yield Event(start + 2 * time, d2, False)
    yield Event(start + 2 * time, g2, True)
    yield Event(start + 3 * time, d1, False)  # weights of F2
    yield Event(start + 3 * time, y2, False)
    yield Event(start + 4 * time, x1, False)  # F1 again
    yield Event(start + 4 * time, y2, False)
    yield Event(start + 4 * time, x2, True)
    yield Event(start + 5 * time, g2, False)  # u
    yield Event(start + 6 * time, d1, False)  # d1 + u, when the weights of F1 are done too
    yield Event(start + 6 * time, x1, False)
    yield Event(start + 6 * time, g2, False)
    yield Event(start + 6 * time, g1, True)


class ForgettingMemory:
    """Embedded DRAM that forgets: reading a datum after `retention` raises, unless refreshed in between. Keeps lifetimes."""

    def __init__(self, retention: float | None = None) -> None:
        self.retention = retention
        self._written: dict[str, float] = {}
        self.lifetimes: dict[str, float] = {}

    def do(self, event: Event) -> None:
        """Write or read a datum; what was there before the first event counts as written then."""
        if event.writes or event.name not in self._written:
            self._written.setdefault(event.name, event.time)
            if event.writes:
                self._written[event.name] = event.time
            return
        lived = event.time - self._written[event.name]
        if self.retention is not None and lived > self.retention:
            raise ModelError(
                f"'{event.name}' is read {lived:g} after its writing; memory keeps it for {self.retention:g}."
            )
        self.lifetimes[event.name] = max(lived, self.lifetimes.get(event.name, 0.0))

    def begin(self, names: list[str], time: float) -> None:
        """Write data that another unit left."""
        for name in names:
            self._written[name] = time


def simulated_lifetimes(blocks: int, time: float, retention: float | None = None) -> tuple[float, float]:
    """Return the longest lifetimes of the forward and of the backward pass of a chain, stamped event by event.

    A datum that one block writes and the next one reads lives across both.
    """
    forward, backward = ForgettingMemory(retention), ForgettingMemory(retention)
    forward.begin(["x1 of 0", "x2 of 0"], 0.0)
    for block in range(blocks):
        for event in forward_events(block, 2 * block * time, time):
            forward.do(event)
    ends = [f"{kind} of {blocks}" for kind in ("back x1", "back x2", "gradient of x1", "gradient of x2")]
    backward.begin(ends, 0.0)
    for place, block in enumerate(reversed(range(blocks))):
        for event in backward_events(block, 6 * place * time, time):
            backward.do(event)
    return max(forward.lifetimes.values()), max(backward.lifetimes.values())
