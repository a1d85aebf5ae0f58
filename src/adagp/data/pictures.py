"""Pictures in folders: which there are, and one as an array. Pillow is imported when a picture is read."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adagp.data.images import Pixels
from adagp.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


def class_folders(root: Path, classes: Sequence[str] | None = None) -> tuple[list[str], list[tuple[Path, int]]]:
    """Return the class names below `root` and every picture with its label, both in sorted order.

    A class is a folder of `root`; its pictures may lie deeper. With `classes` given, `root` may hold no
    others.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; it should hold a folder of pictures for each class.")
    found = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    names = found if classes is None else list(classes)
    foreign = sorted(set(found) - set(names))
    if foreign:
        raise DataError(f"{root}: the class {foreign[0]} is not among the training classes.")
    samples = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not samples:
        raise DataError(f"{root}: no pictures found; it should hold a folder of pictures for each class.")
    return names, samples


def open_picture(source: Path | BytesIO, name: object = None) -> "Image":
    """Return the picture in RGB, decoded; one that is broken, or has more pixels than Pillow trusts, is a `DataError`."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError("pictures are read by Pillow, which is not installed: pip install 'adagp[detect]'.") from None

    try:
        with Image.open(source) as picture:
            return picture.convert("RGB")
    except Exception as fault:  # decoders of damaged pictures fail in any way
        raise DataError(f"{name or source}: not a readable picture ({fault}).") from fault


def read_picture(path: Path, size: int) -> Pixels:
    """Return the picture as (size, size, 3): its centre, the shorter side brought to `size` pixels."""
    return resized(open_picture(path), size, size)


def resized(picture: "Image", shorter: int, crop: int) -> Pixels:
    """Return the centre (crop, crop, 3) of the picture after its shorter side has become `shorter` pixels."""
    side = min(picture.size) * crop / shorter
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    return resized_box(picture, (left, top, left + side, top + side), crop)


def resized_box(picture: "Image", box: tuple[float, float, float, float], size: int) -> Pixels:
    """Return the part of the picture in `box` (left, top, right, bottom; pixels) as (size, size, 3)."""
    from PIL.Image import Resampling

    return np.asarray(picture.resize((size, size), Resampling.BILINEAR, box=box))
