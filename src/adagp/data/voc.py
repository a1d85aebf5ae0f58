"""Pascal VOC in its devkit's layout, as a folder or as a zip of it. No torch here.

Looked for below `VOCdevkit/VOC2012`: `ImageSets/Main/train.txt` and `val.txt` list names; `JPEGImages/NAME.jpg` is a picture
and `Annotations/NAME.xml` says what is in it. Everything but the pictures themselves is read and checked at once.
"""

import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from adagp.errors import DataError

LARGEST_FILE = 256 * 2**20
"""Bytes of a picture or an annotation at most."""
NAME = re.compile(r"\w[\w.-]{0,199}")
"""A picture's name: no path to somewhere else."""
LONGEST_SIDE = 65_500
"""Pixels of a side of a JPEG picture at most."""
File = Path | zipfile.Path
DEVKIT = "VOCdevkit"
YEAR = "VOC2012"
CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)


@dataclass(frozen=True, eq=False)
class Objects:
    """What is in one picture: `corners` `(n, 4)` as left, top, right, bottom; `labels` `(n,)`; which are `difficult` `(n,)`.

    Difficult objects are neither trained on nor counted when a detector is judged.
    """

    corners: NDArray[np.float32]
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Annotated:
    """A picture that is not read yet, its `width` and `height`, and its objects, all in pixels."""

    picture: File
    width: int
    height: int
    objects: Objects


def read_voc(path: Path) -> tuple[list[Annotated], list[Annotated]]:
    """Return the training and the validation pictures below `path`: the folder `VOCdevkit`, or a zip that holds it."""
    root = _root(path)
    if not (root / "ImageSets" / "Main").is_dir():
        raise DataError(f"{path}: it holds no {DEVKIT}/{YEAR}/ImageSets/Main; expected the layout of VOC's devkit.")
    return _read_split(root, "train"), _read_split(root, "val")


def read_file(file: File) -> bytes:
    """Return what a file, perhaps of a zip, holds: not more than a picture can have."""
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except (OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as fault:
        raise DataError(f"{file}: it cannot be read ({fault}).") from None
    if len(content) > LARGEST_FILE:
        raise DataError(f"{file}: it has more than {LARGEST_FILE:,} bytes.")
    return bytes(content)


def _root(path: Path) -> File:
    if path.is_dir():
        return path / YEAR
    try:
        return zipfile.Path(zipfile.ZipFile(path)) / DEVKIT / YEAR
    except (zipfile.BadZipFile, OSError) as fault:
        raise DataError(f"{path}: not a readable zip of {DEVKIT} ({fault}).") from None


def _read_split(root: File, split: str) -> list[Annotated]:
    listing = root / "ImageSets" / "Main" / f"{split}.txt"
    if not listing.is_file():
        raise DataError(f"{listing}: no such file; it should list the pictures of the {split} split.")
    try:
        names = read_file(listing).decode("utf-8").split()
    except UnicodeDecodeError:
        raise DataError(f"{listing}: it is not text in UTF-8.") from None
    if not names:
        raise DataError(f"{listing}: it lists no pictures.")
    for name in names:
        if not NAME.fullmatch(name):
            raise DataError(
                f"{listing}: '{name[:100]}' is no name of a picture; letters, digits, '_', '-' and '.' make one."
            )
    return [_read_annotated(root, name) for name in names]


def _read_annotated(root: File, name: str) -> Annotated:
    annotation, picture = root / "Annotations" / f"{name}.xml", root / "JPEGImages" / f"{name}.jpg"
    if not annotation.is_file():
        raise DataError(f"{annotation}: no such file; the picture '{name}' is listed but has no annotation.")
    if not picture.is_file():
        raise DataError(f"{annotation}: its image {picture} is missing.")
    try:
        tree = ElementTree.fromstring(read_file(annotation))
        width, height = (int(_text(tree, f"size/{side}")) for side in ("width", "height"))
        if not (1 <= width <= LONGEST_SIDE and 1 <= height <= LONGEST_SIDE):
            raise ValueError(f"its size is {width}x{height}; sides are 1 to {LONGEST_SIDE:,} pixels")
        found = [_read_object(entry) for entry in tree.iter("object")]
    except (ElementTree.ParseError, ValueError) as fault:
        raise DataError(f"{annotation}: not a readable annotation ({fault}).") from None
    for kind, box, _ in found:
        _check_object(annotation, kind, box, width, height)
    corners = np.array([box for _, box, _ in found], np.float32).reshape(-1, 4)
    corners[:, :2] -= 1  # VOC counts pixels from 1 and names the last one that is inside
    labels = np.array([CLASSES.index(kind) for kind, _, _ in found], np.int64)
    return Annotated(
        picture, width, height, Objects(corners, labels, np.array([difficult for *_, difficult in found], np.bool_))
    )


def _read_object(entry: ElementTree.Element) -> tuple[str, list[float], bool]:
    box = [float(_text(entry, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
    return _text(entry, "name"), box, entry.findtext("difficult", "0").strip() == "1"


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"{path} is missing")
    return text.strip()


def _check_object(annotation: File, kind: str, box: list[float], width: int, height: int) -> None:
    if kind not in CLASSES:
        raise DataError(f"{annotation}: unknown class '{kind}'. Choose from: {', '.join(CLASSES)}.")
    left, top, right, bottom = box
    shown = ", ".join(f"{length:g}" for length in box)
    if not (left >= 1 and top >= 1 and right <= width and bottom <= height):  # NaN is nowhere
        raise DataError(
            f"{annotation}: the box ({shown}) of a {kind} lies outside its image; allowed are xmin and ymin from 1, "
            f"xmax to {width} and ymax to {height}."
        )
    if right < left or bottom < top:
        raise DataError(
            f"{annotation}: the box ({shown}) of a {kind} is empty; xmax and ymax must not be below the others."
        )
