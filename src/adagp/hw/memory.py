"""What limits a tiling, and what a tiling is. The search for the best one is in `tiling.py`, which needs numpy."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Memory:
    """What limits a tiling: bits of the global buffer and of accumulators beside it (0: sums are in the buffer), and
    off-chip bits per cycle.
    """

    buffer_bits: float
    accumulator_bits: float = 0
    bits_per_cycle: float = inf


@dataclass(frozen=True)
class Tiling:
    """The (rows, depth, columns) of a tile, the loops from the outermost, and the off-chip bits of all `count` products."""

    tile: tuple[int, int, int]
    order: tuple[str, str, str]
    reads: int
    writes: int
