"""The data sets as rows of a table. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from adagp.data.load import DEFAULT_DATA_DIR, find
from adagp.data.registry import DATASETS


@dataclass(frozen=True)
class DatasetRow:
    """A data set, where it is looked for, and where it was found (None: it is not there)."""

    name: str
    task: str
    description: str
    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    looked_for: tuple[str, ...]
    found: str | None
    downloadable: bool


def describe_datasets(data_dir: Path | str = DEFAULT_DATA_DIR) -> list[DatasetRow]:
    """Return a row for every data set, with what is there of them in `data_dir`."""
    rows = []
    for info in (DATASETS[name] for name in DATASETS):
        found = find(info, Path(data_dir))
        rows.append(
            DatasetRow(
                name=info.name,
                task=info.task,
                description=info.description,
                shape=info.shape,
                classes=info.classes,
                train=info.train,
                test=info.test,
                looked_for=tuple(str(Path(data_dir) / file) for file in info.files),
                found=None if found is None else str(found),
                downloadable=info.fetch is not None,
            )
        )
    return rows
