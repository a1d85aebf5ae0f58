"""Scalars in a CSV file: a row for each step and name."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

from adagp.core.files import read_text, write_atomically
from adagp.errors import RunError
from adagp.program.loggers.base import Logger

NAMES = ("step", "name", "value")
LONGEST_STEP = 20
"""Digits of a step at most."""


class CsvFile(Logger):
    """Appends to the file `scalars.csv`. Rows of later steps, left by a process that died, are dropped first."""

    def __init__(self, folder: Path, done: int = 0) -> None:
        path = folder / "scalars.csv"
        kept: list[list[str]] = []
        if done and path.is_file():
            lines = read_text(path, "the figures so far", RunError).splitlines()
            try:
                kept = [row for row in csv.reader(lines) if len(row) == len(NAMES) and _step(row) <= done]
            except csv.Error as error:
                raise RunError(f"cannot read the figures so far '{path}': {error}.") from None
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([NAMES, *kept])
        write_atomically(path, text.getvalue().encode())  # what is kept is never half there
        self._file: Any = path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name, to be seen at once."""
        self._writer.writerows((step, name, value) for name, value in values.items())
        self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()


def _step(row: Sequence[str]) -> float:
    """Return the step of a row; infinity for the heading, or a row of somebody else's."""
    return int(row[0]) if row[0].isdecimal() and len(row[0]) < LONGEST_STEP else inf
