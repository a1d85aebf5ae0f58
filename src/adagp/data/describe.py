"""The data sets as rows of a table. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.data.load import DEFAULT_DATA_DIR, find
from adagp.data.registry import DATASETS, DatasetInfo

SHOWN = ("name", "task", "description", "shape", "classes", "train", "test")
"""What is told of a data set itself."""


@dataclass(frozen=True)
class DatasetRow:
    """A data set, where it is looked for, and where it was found (None: it is not there)."""

    info: DatasetInfo
    looked_for: tuple[str, ...]
    found: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        known = {name: getattr(self.info, name) for name in SHOWN}
        return {**known, "looked_for": self.looked_for, "found": self.found, "downloadable": bool(self.info.fetch)}


def describe_datasets(data_dir: Path | str = DEFAULT_DATA_DIR) -> list[DatasetRow]:
    """Return a row for every data set, with what is there of them in `data_dir`."""
    rows = []
    for info in (DATASETS[name] for name in DATASETS):
        found = find(info, Path(data_dir))
        looked_for = tuple(str(Path(data_dir) / file) for file in info.files)
        rows.append(DatasetRow(info, looked_for, None if found is None else str(found)))
    return rows
