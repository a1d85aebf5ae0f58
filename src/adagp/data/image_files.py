"""Pictures, and image sets in common folder layouts. torchvision and Pillow are imported when needed.

All readers have the same signature: the set's name, its folder, and the size in pixels. Pictures of various sizes are resized
so that the shorter side has this size, and their square centre is taken.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adagp.core.files import read_text
from adagp.data.images import ImageSet, Pixels, image_set
from adagp.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


def class_folders(root: Path, classes: Sequence[str] | None = None) -> tuple[list[str], list[tuple[Path, int]]]:
    """Return the class names below `root` and every picture with its label, both in sorted order.

    A class is a folder of `root`; its pictures may be in subfolders. If `classes` is given, other folders are an error.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; it should hold a folder of pictures for each class.")
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    names = folders if classes is None else list(classes)
    foreign = sorted(set(folders) - set(names))
    if foreign:
        raise DataError(f"{root}: the class {foreign[0]} is not among the training classes.")
    samples = [(path, label) for label, name in enumerate(names) for path in _pictures(root / name)]
    if not samples:
        raise DataError(f"{root}: no pictures found; it should hold a folder of pictures for each class.")
    return names, samples


def _pictures(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES and path.is_file()]


def open_picture(source: Path | BytesIO, name: object = None) -> "Image":
    """Return the picture in RGB, decoded; one that is broken, or has more pixels than Pillow trusts, is a `DataError`."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError("pictures are read by Pillow, which is not installed: pip install '.[detect]'.") from None

    try:
        with Image.open(source) as picture:
            return picture.convert("RGB")
    except Exception as fault:  # decoders of damaged pictures fail in any way
        raise DataError(f"{name or source}: not a readable picture ({fault}).") from fault


def read_picture(path: Path, size: int) -> Pixels:
    """Return the picture's centre as (size, size, 3), resized so that the shorter side has `size` pixels."""
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


Reader = Callable[[str, Path, int], ImageSet]

IMAGENETTE_NAMES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def read_cifar10(name: str, folder: Path, size: int) -> ImageSet:
    """Return CIFAR-10 from its Python batches `cifar-10-batches-py`."""
    return _read_cifar("CIFAR10", name, folder)


def read_cifar100(name: str, folder: Path, size: int) -> ImageSet:
    """Return CIFAR-100 with its 100 fine labels from `cifar-100-python`."""
    return _read_cifar("CIFAR100", name, folder)


def _read_cifar(kind: str, name: str, folder: Path) -> ImageSet:
    """Read through torchvision, which first compares the files' md5: they are pickles and could run code."""
    from adagp.models.vision import load_torchvision

    reader: Any = getattr(load_torchvision("torchvision.datasets"), kind)
    try:
        train, test = (reader(str(folder.parent), train=part) for part in (True, False))
    except RuntimeError as fault:
        raise DataError(
            f"{folder}: these are not the original files of {name} (one is missing or its md5 differs)."
        ) from fault
    arrays = {
        "x_train": train.data,
        "y_train": np.asarray(train.targets),
        "x_test": test.data,
        "y_test": np.asarray(test.targets),
    }
    return image_set(name, arrays, str(folder), tuple(train.classes))


def read_imagenette(name: str, folder: Path, size: int) -> ImageSet:
    """Return Imagenette from `train` and `val` with a folder for each class."""
    wnids, train = class_folders(folder / "train")
    _, test = class_folders(folder / "val", wnids)
    return _read_pictures(name, folder, size, train, test, tuple(IMAGENETTE_NAMES.get(wnid, wnid) for wnid in wnids))


def read_tinyimagenet(name: str, folder: Path, size: int) -> ImageSet:
    """Return Tiny-ImageNet from its own layout, or with the `val` pictures sorted into class folders."""
    wnids, train = class_folders(folder / "train")
    annotations = folder / "val" / "val_annotations.txt"
    test = _annotated(annotations, wnids) if annotations.is_file() else class_folders(folder / "val", wnids)[1]
    return _read_pictures(name, folder, size, train, test, tuple(wnids))


def _annotated(annotations: Path, wnids: Sequence[str]) -> list[tuple[Path, int]]:
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    samples = []
    for number, line in enumerate(read_text(annotations, "the annotations", DataError).splitlines(), start=1):
        picture, wnid, *_ = (*line.split("\t"), "", "")
        if not picture or not wnid:
            raise DataError(f"{annotations}: line {number} must have a picture and its class, with a tab between.")
        if wnid not in labels:
            raise DataError(f"{annotations}: {picture} is of class {wnid}, which has no folder below train.")
        samples.append((annotations.parent / "images" / picture, labels[wnid]))
    return samples


def _read_pictures(
    name: str,
    folder: Path,
    size: int,
    train: Sequence[tuple[Path, int]],
    test: Sequence[tuple[Path, int]],
    class_names: tuple[str, ...],
) -> ImageSet:
    def decode(samples: Sequence[tuple[Path, int]]) -> Pixels:
        with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
            return np.stack(list(pool.map(lambda sample: read_picture(sample[0], size), samples)))

    arrays = {
        "x_train": decode(train),
        "y_train": np.array([label for _, label in train]),
        "x_test": decode(test),
        "y_test": np.array([label for _, label in test]),
    }
    return image_set(name, arrays, str(folder), class_names)
