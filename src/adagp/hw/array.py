"""The PE array: its sides, and the text form `ROWSxCOLUMNS`."""

import re
from dataclasses import dataclass

from adagp.errors import OptionError


@dataclass(frozen=True)
class Array:
    """A grid of processing elements, each with one multiply-accumulate a cycle."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise OptionError(f"array {self} is not allowed: rows and columns must be at least 1, for example 12x15.")

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def pes(self) -> int:
        """Processing elements."""
        return self.rows * self.columns


def parse_array(text: str) -> Array:
    """Return the array that `text` (`12x15`) describes."""
    match = re.fullmatch(r"(-?\d+)x(-?\d+)", text.strip())
    if match is None:
        raise OptionError(f"cannot read the array '{text}'; write ROWSxCOLUMNS, for example 12x15.")
    return Array(int(match[1]), int(match[2]))


def enlarged(array: Array, factor: float) -> list[Array]:
    """Return arrays with up to `factor` times the PEs (rounded), the given one first.

    They are as large as their rows allow, larger than the given one, and of a shape within a factor of two of its
    own.
    """
    budget = round(array.pes * factor)
    shape = array.rows / array.columns
    choices = [Array(rows, budget // rows) for rows in range(1, budget + 1)]
    return [
        array,
        *(choice for choice in choices if choice.pes > array.pes and 0.5 <= choice.rows / choice.columns / shape <= 2),
    ]
