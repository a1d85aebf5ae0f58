"""Pascal VOC for object detection: its files, pictures letterboxed into a square, and batches of pictures with boxes.

VOC is read in its devkit's layout, from a folder or from a zip of it. Below `VOCdevkit/VOC2012`,
`ImageSets/Main/train.txt` and `val.txt` list names; `JPEGImages/NAME.jpg` is a picture, and
`Annotations/NAME.xml` lists its objects. Everything but the pictures themselves is read and checked at once.
Batches are a pure function of seed, epoch and batch.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from adagp.data.batches import (
    WHOLE,
    Share,
    batch_count,
    check_batch_size,
    check_seed,
    epoch_order,
    fingerprint,
    generator_for,
)
from adagp.data.image_files import open_picture
from adagp.data.images import Pixels
from adagp.data.loaders import IMAGENET_MEAN, IMAGENET_STD
from adagp.errors import DataError

LARGEST_FILE = 256 * 2**20
"""The most bytes of a picture or an annotation."""
NAME = re.compile(r"\w[\w.-]{0,199}")
"""A picture's name, which cannot be a path to somewhere else."""
LONGEST_SIDE = 65_500
"""The most pixels of a side of a JPEG picture."""
File = Path | zipfile.Path
DEVKIT = "VOCdevkit"
YEAR = "VOC2012"
CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects in one picture: `corners` `(n, 4)` as left, top, right, bottom; `labels` `(n,)`; which are `difficult`
    `(n,)`.

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
    """Return the content of a file, which may be inside a zip; raise if it has more than `LARGEST_FILE` bytes."""
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
                f"{listing}: '{name[:100]}' is not the name of a picture; letters, digits, '_', '-' and '.' make one."
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
        width, height = _read_size(tree)
        objects = [_read_object(entry) for entry in tree.iter("object")]
    except (ElementTree.ParseError, ValueError) as fault:
        raise DataError(f"{annotation}: not a readable annotation ({fault}).") from None
    for kind, box, _ in objects:
        _check_object(annotation, kind, box, width, height)
    corners = np.array([box for _, box, _ in objects], np.float32).reshape(-1, 4)
    corners[:, :2] -= 1  # VOC counts pixels from 1 and names the last one that is inside
    labels = np.array([CLASSES.index(kind) for kind, _, _ in objects], np.int64)
    difficult = np.array([difficult for *_, difficult in objects], np.bool_)
    return Annotated(picture, width, height, Objects(corners, labels, difficult))


def _read_size(tree: ElementTree.Element) -> tuple[int, int]:
    width, height = (int(_text(tree, f"size/{side}")) for side in ("width", "height"))
    if not (1 <= width <= LONGEST_SIDE and 1 <= height <= LONGEST_SIDE):
        raise ValueError(f"its size is {width}x{height}; sides are 1 to {LONGEST_SIDE:,} pixels")
    return width, height


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
    corners = ", ".join(f"{length:g}" for length in box)
    if not (left >= 1 and top >= 1 and right <= width and bottom <= height):  # comparisons with NaN are false
        raise DataError(
            f"{annotation}: the box ({corners}) of a {kind} lies outside its image; allowed are xmin and ymin from 1, "
            f"xmax to {width} and ymax to {height}."
        )
    if right < left or bottom < top:
        raise DataError(
            f"{annotation}: the box ({corners}) of a {kind} is empty; xmax and ymax must not be below the others."
        )


FILL = (124, 116, 104)
"""The colour of the letterbox's margin: ImageNet's mean, which is zero after normalisation."""


def read_letterboxed(samples: Sequence[Annotated], size: int) -> Pixels:
    """Return the pictures, decoded by several threads, as `(N, size, size, 3)`."""
    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
        return np.stack(list(pool.map(lambda sample: read_one(sample, size), samples)))


def read_one(sample: Annotated, size: int) -> Pixels:
    """Return the picture, resized so that its longer side has `size` pixels, centred in a square of `FILL`."""
    from PIL import Image

    picture = open_picture(BytesIO(read_file(sample.picture)), sample.picture)
    if picture.size != (sample.width, sample.height):
        raise DataError(
            f"{sample.picture}: it is {picture.width}x{picture.height} pixels, "
            f"but its annotation says {sample.width}x{sample.height}."
        )
    left, top, width, height = _letterbox(sample, size)
    square = Image.new("RGB", (size, size), FILL)
    square.paste(picture.resize((width, height), Image.Resampling.BILINEAR), (left, top))
    return np.asarray(square)


def letterboxed(sample: Annotated, size: int) -> Objects:
    """Return the picture's objects with their corners in units of the square's side."""
    left, top, width, height = _letterbox(sample, size)
    scale = np.array([width / sample.width, height / sample.height] * 2, np.float32)
    shift = np.array([left, top] * 2, np.float32)
    corners = ((sample.objects.corners * scale + shift) / size).astype(np.float32)
    return Objects(corners, sample.objects.labels, sample.objects.difficult)


def _letterbox(sample: Annotated, size: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the picture in its square, in pixels."""
    longer = max(sample.width, sample.height)
    width, height = (max(1, round(length * size / longer)) for length in (sample.width, sample.height))
    return (size - width) // 2, (size - height) // 2, width, height


MEMORY = 1 << 30
"""Up to this many bytes, the pictures of a part are decoded once and kept; larger parts are decoded batch by batch."""
ZOOM = (0.7, 1.5)
ASPECT = (0.8, 1.25)
SHIFT = 0.2
_VISIBLE = 0.3
_SMALLEST = 0.01

BoxedBatch = tuple[Tensor, tuple[Tensor, Tensor]]
"""Images `(N, 3, size, size)`; boxes `(N, M, 4)`, centre and size in units of the side; labels `(N, M)`, -1 for none."""


class BoxedBatches:
    """The pictures of one part in squares of `size` pixels, normalised with ImageNet's mean and std, with their objects.

    Difficult objects are left out. For training, pictures are shuffled, of one batch size, and jittered.
    """

    def __init__(self, samples: Sequence[Annotated], batch_size: int, *, size: int, seed: int = 0, train: bool) -> None:
        check_batch_size(batch_size, len(samples), train, "training set")
        check_seed(seed)
        self.samples = samples
        self.batch_size = batch_size
        self.size = size
        self.seed = seed
        self.train = train
        self.objects = [letterboxed(sample, size) for sample in samples]
        fits = len(samples) * size * size * 3 <= MEMORY
        self._pixels = torch.from_numpy(read_letterboxed(samples, size)) if fits else None
        self._boxes, self._labels = self._targets()
        self._mean = torch.tensor(IMAGENET_MEAN).view(-1, 1, 1)
        self._scale = 1 / torch.tensor(IMAGENET_STD).view(-1, 1, 1)

    def __len__(self) -> int:
        return batch_count(len(self.samples), self.batch_size, self.train)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[BoxedBatch]:
        """Yield the batches of `epoch` from batch `start` on."""
        order = epoch_order(len(self.samples), self.seed, epoch, self.train)
        for batch in range(start, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            indices = share.of(chosen)
            images, boxes, labels = self._images(indices), self._boxes[indices], self._labels[indices]
            if self.train:
                draws = torch.rand(5, len(chosen), generator=generator_for(self.seed, epoch, batch))
                images, boxes, labels = jitter(images, boxes, labels, share.of(draws.T).T)
            most = max(1, int((labels >= 0).sum(1).max()))
            first = (labels < 0).int().argsort(dim=1, stable=True)[:, :most]  # objects before gaps
            yield images, (boxes.gather(1, first[..., None].expand(-1, -1, 4)), labels.gather(1, first))

    @property
    def facts(self) -> dict[str, Any]:
        """How many samples there are, and a digest of their names and objects; the pictures themselves are not compared."""
        names = [sample.picture.name for sample in self.samples]
        return {"samples": len(names), "digest": fingerprint([*names, self._boxes.numpy(), self._labels.numpy()])}

    def _images(self, chosen: Tensor) -> Tensor:
        if self._pixels is None:
            pixels = torch.from_numpy(read_letterboxed([self.samples[index] for index in chosen.tolist()], self.size))
        else:
            pixels = self._pixels[chosen]
        return pixels.permute(0, 3, 1, 2).contiguous().float().sub_(self._mean).mul_(self._scale)

    def _targets(self) -> tuple[Tensor, Tensor]:
        """Return boxes and labels of all samples, filled up to the largest number of objects in one."""
        most = max(1, max(int((~each.difficult).sum()) for each in self.objects))
        boxes, labels = torch.zeros(len(self.objects), most, 4), torch.full((len(self.objects), most), -1)
        for index, each in enumerate(self.objects):
            corners, known = torch.from_numpy(each.corners[~each.difficult]), each.labels[~each.difficult]
            low, high = corners[:, :2], corners[:, 2:]
            boxes[index, : len(known)] = torch.cat([(low + high) / 2, high - low], 1)
            labels[index, : len(known)] = torch.from_numpy(known)
        return boxes, labels


def jitter(images: Tensor, boxes: Tensor, labels: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mirror, zoom, stretch and shift each image at random, with its boxes; `draws` `(5, N)` are between 0 and 1."""
    mirror = torch.where(draws[0] < 0.5, -1.0, 1.0)
    zoom = ZOOM[0] * (ZOOM[1] / ZOOM[0]) ** draws[1]
    stretch = (ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** draws[2]).sqrt()
    scale = torch.stack([mirror * zoom * stretch, zoom / stretch], 1)
    shift = (draws[3:].T * 2 - 1) * SHIFT
    return move_images(images, scale, shift), *move_boxes(boxes, labels, scale, shift)


def move_images(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Scale images `(N, C, H, W)` about their centre and shift them; `scale` and `shift` are `(N, 2)`, x first.

    A negative scale mirrors; shifts are in units of the side. Pixels from outside an image are 0.
    """
    inverse = torch.diag_embed(1 / scale)
    offset = -2 * shift / scale  # affine_grid's side has length 2, and it maps each pixel to where it comes from
    theta = torch.cat([inverse, offset[..., None]], 2)
    return grid_sample(images, affine_grid(theta, list(images.shape), align_corners=False), align_corners=False)


def move_boxes(boxes: Tensor, labels: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Move boxes `(N, M, 4)` as `move_images` moves the images, cut them at the border, and drop hardly visible objects.

    An object is dropped (its label becomes -1) if less than 30% of its area is left, or a side is under 1% of the image's.
    """
    scale, shift = scale[:, None], shift[:, None]
    centre, half = (boxes[..., :2] - 0.5) * scale + shift + 0.5, boxes[..., 2:] * scale.abs() / 2
    low, high = (centre - half).clamp(0, 1), (centre + half).clamp(0, 1)
    sides = high - low
    seen = (sides.prod(-1) >= _VISIBLE * (2 * half).prod(-1)) & (sides.amin(-1) >= _SMALLEST)
    return torch.cat([(low + high) / 2, sides], -1), torch.where(seen, labels, -1)
