"""Image sets in `.npz` files, read without pickle: a foreign file cannot run code."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from adagp.core.memory import check_memory
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
    _refuse_false_size(archive, key, path)
    try:
        array = archive[key]
    except ValueError as fault:
        if "allow_pickle" in str(fault):
            raise DataError(f"{path}: {key} is pickled, which could run code; save it as a plain array.") from fault
        raise DataError(f"{path}: {key} is damaged ({fault}).") from fault
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {key} is not a numpy array.")
    return array


def _refuse_false_size(archive: "np.lib.npyio.NpzFile", key: str, path: Path) -> None:
    """Refuse an array that claims more than its entry holds, or more than fits into memory, before it is allocated."""
    entry = next((one for one in archive.zip.infolist() if one.filename == f"{key}.npy"), None)  # type: ignore[union-attr]
    if entry is None:
        return
    with archive.zip.open(entry) as file:  # type: ignore[union-attr]
        try:
            read_header = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)]
            shape, _, dtype = read_header(file)
        except (ValueError, KeyError, EOFError):
            return  # numpy says what is wrong with it
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
