"""Finding an image set by name and reading it into memory, and the table of all sets. Reads without torch."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.data.images import KEYS, NAMES_KEY, ImageSet, read_npz
from adagp.data.registry import DATASETS, DatasetInfo
from adagp.errors import DataError, OptionError
from adagp.models.registry import IMAGES

DEFAULT_DATA_DIR = Path("data")


def load_images(
    name: str, data_dir: Path | str = DEFAULT_DATA_DIR, download: bool = False, size: int | None = None
) -> ImageSet:
    """Return the image set called `name`, or the one in the file `name` if that ends in `.npz`.

    `digits` comes with the package: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI
    Machine Learning Repository, 1998, CC BY 4.0 (details in DIGITS.md next to this file). Other sets are
    looked for in `data_dir` and, with `download`, fetched into it if they are missing. `size` in pixels is
    for sets whose pictures are resized when read from folders; None means the set's usual size.
    """
    if name.endswith(".npz"):
        return read_npz(Path(name), Path(name).stem)
    info = image_info(name)
    if info.streamed:
        raise OptionError(
            f"{name} is too large to hold in memory; adagp.data.loaders.image_loaders reads it batch by batch."
        )
    path = locate(info, Path(data_dir), download)
    if path.suffix == ".npz":
        images = read_npz(path, name, info.classes)
    else:
        assert info.reader is not None, f"{name} lists a folder but has no reader"
        images = info.reader(name, path, size or info.shape[-1])
    _check_expected_data(info, images, path, size)
    return images


def image_info(name: str) -> DatasetInfo:
    """Return what is known of the image set `name`; raise if it is of another task."""
    info = DATASETS[name]
    if info.task != IMAGES:
        raise OptionError(f"data set '{name}' is for the task {info.task}, not {IMAGES}.")
    return info


def locate(info: DatasetInfo, data_dir: Path, download: bool = False) -> Path:
    """Return the first of a data set's files that exists; with `download`, a missing set is fetched."""
    path = find(info, data_dir)
    if path is None and download and info.fetch is not None:
        with redirect_stdout(sys.stderr):  # standard output belongs to results
            try:
                info.fetch(data_dir)
            except (OSError, RuntimeError) as fault:
                raise DataError(f"could not download {info.name}: {fault}. {ways_to_get(info, data_dir)}") from fault
        path = find(info, data_dir)
    if path is None:
        raise DataError(f"data set '{info.name}' is not in {data_dir}. {ways_to_get(info, data_dir)}")
    return path


def find(info: DatasetInfo, data_dir: Path) -> Path | None:
    """Return the first of a data set's files that exists, or None; what is packaged always exists."""
    if info.packaged is not None:
        return Path(__file__).parent / info.packaged
    return next((data_dir / file for file in info.files if (data_dir / file).exists()), None)


_WAYS = {
    ".npz": f"the file {{}} with the arrays {', '.join(KEYS)} (and {NAMES_KEY} if you like)",
    "": "the folder {} in its usual layout",
    ".zip": "a zip of that folder as {}",
}


def ways_to_get(info: DatasetInfo, data_dir: Path) -> str:
    """Return a text on where the set is looked for and how to get it."""
    paths: dict[str, list[str]] = {suffix: [] for suffix in _WAYS}
    for file in info.files:
        suffix = file[-4:] if file.endswith((".npz", ".zip")) else ""
        paths[suffix].append(str(data_dir / file))
    ways = [_WAYS[suffix].format(" or ".join(names)) for suffix, names in paths.items() if names]
    offer = " Or let --download fetch it." if info.fetch else " It cannot be downloaded from here."
    return f"Put there {', or '.join(ways)}.{offer}"


def _check_expected_data(info: DatasetInfo, images: ImageSet, path: Path, size: int | None) -> None:
    """Raise if a valid file holds another data set, or another image size than requested."""
    if images.classes != info.classes:
        raise DataError(f"{path}: it has {images.classes} classes; {info.name} has {info.classes}.")
    expected = (info.shape[0], size, size) if size else images.shape if info.size_varies else info.shape
    if images.shape != expected or images.shape[0] != info.shape[0]:
        raise DataError(
            f"{path}: its images are {_text(images.shape)} (channels x height x width); expected {_text(expected)}."
        )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(str(length) for length in shape)


SHOWN = ("name", "task", "description", "shape", "classes", "train", "test")
"""The columns about a data set itself."""


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
    """Return a row for every data set, with where it was found in `data_dir`."""
    rows = []
    for info in (DATASETS[name] for name in DATASETS):
        path = find(info, Path(data_dir))
        looked_for = tuple(str(Path(data_dir) / file) for file in info.files)
        rows.append(DatasetRow(info, looked_for, None if path is None else str(path)))
    return rows
