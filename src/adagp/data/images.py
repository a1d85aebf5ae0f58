"""An image set in memory, as numpy arrays that are checked once when it is made; and its `.npz` files. No torch here.

The files are read without pickle, so a file from elsewhere cannot run code.
"""

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from adagp.core.memory import check_memory
from adagp.errors import DataError

MOST_CLASSES = 100_000
"""The most classes of a set without class names, since a model has a score for each. ImageNet-21k has 21,841."""
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of shape (N, height, width, channels), uint8, with whole-number labels from 0 to `classes` - 1.

    `image_set` makes one from unchecked arrays.
    """

    name: str
    x_train: Pixels
    y_train: Labels
    x_test: Pixels
    y_test: Labels
    class_names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image, in torch's order."""
        _, height, width, channels = self.x_train.shape
        return channels, height, width

    @property
    def classes(self) -> int:
        """The number of classes, those without a picture included."""
        return len(self.class_names)


def image_set(
    name: str, arrays: dict[str, NDArray[Any]], where: str, class_names: tuple[str, ...] | None = None
) -> ImageSet:
    """Check `arrays` (x_train, y_train, x_test, y_test) and return them as an `ImageSet`.

    `where` names their origin in errors. Without `class_names` the number of classes is the highest label + 1. Grey images may
    leave out the channel axis.
    """
    pixels = {part: _checked_images(f"x_{part}", arrays[f"x_{part}"], where) for part in ("train", "test")}
    labels = {part: _checked_labels(part, arrays, where) for part in ("train", "test")}
    _check_equal_sizes(pixels["train"], pixels["test"], where)
    if class_names is None:
        highest = max(int(values.max()) for values in labels.values())
        if highest >= MOST_CLASSES:
            raise DataError(
                f"{where}: a label is {highest}; without class names labels run to {MOST_CLASSES - 1} at most."
            )
        class_names = tuple(str(label) for label in range(highest + 1))
    for part, values in labels.items():
        _check_labels_in_range(f"y_{part}", values, len(class_names), where)
    return ImageSet(name, pixels["train"], labels["train"], pixels["test"], labels["test"], class_names)


def _checked_images(key: str, images: NDArray[Any], where: str) -> Pixels:
    if images.dtype != np.uint8:
        raise DataError(f"{where}: {key} has dtype {images.dtype}; images must be uint8 (0 to 255).")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DataError(
            f"{where}: {key} has shape {images.shape}; images must be (N, height, width, channels) "
            "with 1 or 3 channels, or (N, height, width) for grey ones."
        )
    if 0 in images.shape:
        raise DataError(f"{where}: {key} has shape {images.shape}, which holds no image.")
    return images


def _checked_labels(part: str, arrays: dict[str, NDArray[Any]], where: str) -> Labels:
    labels, images = arrays[f"y_{part}"], arrays[f"x_{part}"]
    if labels.dtype.kind not in "iu":
        raise DataError(f"{where}: y_{part} has dtype {labels.dtype}; labels must be whole numbers (an integer dtype).")
    if labels.ndim != 1:
        raise DataError(f"{where}: y_{part} has shape {labels.shape}; labels must be (N,), one number per image.")
    if len(labels) != len(images):
        raise DataError(f"{where}: x_{part} has {len(images)} images but y_{part} has {len(labels)} labels.")
    return labels.astype(np.int64)


def _check_equal_sizes(train: Pixels, test: Pixels, where: str) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{where}: training images are {_size(train)} but test images are {_size(test)}; both must be alike."
        )


def _size(images: Pixels) -> str:
    return "x".join(str(length) for length in images.shape[1:])


def _check_labels_in_range(key: str, labels: Labels, classes: int, where: str) -> None:
    foreign = labels[(labels < 0) | (labels >= classes)]
    if len(foreign):
        raise DataError(
            f"{where}: {key} holds the label {foreign[0]}; with {classes} classes labels run from 0 to {classes - 1}."
        )


KEYS = ("x_train", "y_train", "x_test", "y_test")
NAMES_KEY = "class_names"


def read_npz(path: Path, name: str, classes: int | None = None) -> ImageSet:
    """Return the image set in the file `path`, fully checked; every fault of the file is a `DataError`.

    The file has the arrays of `KEYS` and optionally `class_names`; other arrays are not read. Without names the classes are
    numbered; their number is `classes`, or the highest label + 1.
    """
    arrays = _arrays(path)
    names = None if classes is None else tuple(str(label) for label in range(classes))
    if NAMES_KEY in arrays:
        names = _names(arrays[NAMES_KEY], path)
    return image_set(name, arrays, str(path), names)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not a .npz archive, or cut off before its end.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in KEYS if key not in archive.files]
            if missing:
                raise DataError(
                    f"{path}: {', '.join(missing)} missing; "
                    f"it holds {', '.join(archive.files) or 'nothing'}. "
                    f"Needed: {', '.join(KEYS)}; {NAMES_KEY} may be there too."
                )
            return {key: _array(archive, key, path) for key in (*KEYS, NAMES_KEY) if key in archive.files}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as fault:
        raise DataError(f"{path}: damaged archive ({fault}).") from fault


def _array(archive: "np.lib.npyio.NpzFile", key: str, path: Path) -> NDArray[Any]:
    _check_claimed_size(archive, key, path)
    try:
        array = archive[key]
    except ValueError as fault:
        if "allow_pickle" in str(fault):
            raise DataError(f"{path}: {key} is pickled, which could run code; save it as a plain array.") from fault
        raise DataError(f"{path}: {key} is damaged ({fault}).") from fault
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {key} is not a numpy array.")
    return array


def _check_claimed_size(archive: "np.lib.npyio.NpzFile", key: str, path: Path) -> None:
    """Raise if an array claims more bytes than its entry has, or than fit into memory, before it is allocated."""
    entry = next((member for member in archive.zip.infolist() if member.filename == f"{key}.npy"), None)  # type: ignore[union-attr]
    if entry is None:
        return
    with archive.zip.open(entry) as file:  # type: ignore[union-attr]
        try:
            read_header = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)]
            shape, _, dtype = read_header(file)
        except (ValueError, KeyError, EOFError):
            return  # numpy raises a clear error
    claimed = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and claimed > entry.file_size:
        raise DataError(
            f"{path}: {key} claims shape {shape} and dtype {dtype}, {claimed:,} bytes, but the archive holds "
            f"{entry.file_size:,}."
        )
    check_memory(claimed, f"{path}: {key}", DataError)


def _names(names: NDArray[Any], path: Path) -> tuple[str, ...]:
    if names.ndim != 1 or names.dtype.kind not in "US" or not len(names):
        raise DataError(
            f"{path}: {NAMES_KEY} has shape {names.shape} and dtype {names.dtype}; "
            "it must be a list of strings, one per class."
        )
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
