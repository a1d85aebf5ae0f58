"""Scalars in a CSV file: a row for each step and name."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adagp.loggers.base import Logger

NAMES = ("step", "name", "value")


class CsvFile(Logger):
    """Appends to the file `scalars.csv`. Rows of later steps, left by a process that died, are dropped first."""

    def __init__(self, folder: Path, done: int = 0) -> None:
        path = folder / "scalars.csv"
        kept: list[list[str]] = []
        if done and path.is_file():
            with path.open(newline="") as file:
                rows = [row for row in csv.reader(file) if len(row) == len(NAMES) and row[0].isdigit()]
            kept = [row for row in rows if int(row[0]) <= done]
        self._file: Any = path.open("w", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerows([NAMES, *kept])

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name, to be seen at once."""
        self._writer.writerows((step, name, value) for name, value in values.items())
        self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()
