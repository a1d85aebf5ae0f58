"""Image sets in `.npz` files, read without pickle: a foreign file cannot run code."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.data.images import ImageSet, image_set
from adagp.errors import DataError

KEYS = ("x_train", "y_train", "x_test", "y_test")
NAMES_KEY = "class_names"


def read_npz(path: Path, name: str, classes: int | None = None) -> ImageSet:
    """Return the image set in the file `path`, checked whole; every fault of the file is a `DataError`.

    The file holds the arrays of `KEYS` and, if it likes, `class_names`; other arrays are not read. Without
    names the classes are numbered, `classes` of them or as many as the labels count up to.
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
            wanted = [key for key in (*KEYS, NAMES_KEY) if key in archive.files]
            return {key: _array(archive, key, path) for key in wanted}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as fault:
        raise DataError(f"{path}: damaged archive ({fault}).") from fault


def _array(archive: "np.lib.npyio.NpzFile", key: str, path: Path) -> NDArray[Any]:
    try:
        array = archive[key]
    except ValueError as fault:
        if "allow_pickle" in str(fault):
            raise DataError(f"{path}: {key} is pickled, which could run code; save it as a plain array.") from fault
        raise DataError(f"{path}: {key} is damaged ({fault}).") from fault
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {key} is not a numpy array.")
    return array


def _names(names: NDArray[Any], path: Path) -> tuple[str, ...]:
    if names.ndim != 1 or names.dtype.kind not in "US" or not len(names):
        raise DataError(
            f"{path}: {NAMES_KEY} has shape {names.shape} and dtype {names.dtype}; "
            "it must be a list of strings, one a class."
        )
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
