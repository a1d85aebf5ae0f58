"""The PE array: its sides, and the text form `ROWSxCOLUMNS`."""

import re
from dataclasses import dataclass

from adagp.errors import OptionError

LONGEST_SIDE = 65_536
"""PEs of a side at most: the largest wafer-scale array has fewer than a thousand."""
MOST_PES = 1_000_000
"""PEs of an array at most."""


@dataclass(frozen=True)
class Array:
    """A grid of processing elements, each with one multiply-accumulate per cycle."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise OptionError(f"array {self} is not allowed: rows and columns must be at least 1, for example 12x15.")
        if max(self.rows, self.columns) > LONGEST_SIDE:
            raise OptionError(f"array {self} is not allowed: rows and columns must be at most {LONGEST_SIDE:,}.")

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


def check_size(text: str) -> None:
    """Refuse a text that names an array of too many PEs: every shape that an array of its size can have is tried."""
    for rows, columns in re.findall(r"(\d+)x(\d+)", text):
        if len(rows) + len(columns) > 14 or int(rows) * int(columns) > MOST_PES:
            raise OptionError(f"array {rows}x{columns} is not allowed: it has more than {MOST_PES:,} PEs.")


def shaped_like(array: Array, factor: float) -> list[Array]:
    """Return the arrays with at most `factor` times the PEs (rounded) and a shape within a factor of two of the given one's.

    For each number of rows there are as many columns as the given PEs allow, and as the larger number allows.
    """
    shape = array.rows / array.columns
    budgets = (array.pes, round(array.pes * factor))
    choices = {array: None}
    for rows in range(1, budgets[-1] + 1):
        for budget in budgets:
            for columns in range(array.pes // rows, budget // rows + 1):
                if columns and 0.5 <= rows / columns / shape <= 2:
                    choices[Array(rows, columns)] = None
    return list(choices)
