"""From a data set's name to its training and test batches.

Sets too large for memory are read from folders while training, by worker processes. As with sets in memory, a batch is a pure
function of seed, epoch and batch: every picture's crop is drawn from a generator of its own, whichever worker decodes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from adagp.data.batches import (
    WHOLE,
    Batches,
    ImageBatches,
    Share,
    batch_count,
    channel_statistics,
    check_batch_size,
    check_seed,
    epoch_order,
    evaluated_on,
    fingerprint,
    generator_for,
    held_out,
    normaliser,
)
from adagp.data.image_files import class_folders, open_picture, resized, resized_box
from adagp.data.images import ImageSet, Pixels
from adagp.data.registry import DEFAULT_DATA_DIR, DatasetInfo, image_info, load_images, locate
from adagp.errors import DataError

Sample = tuple[Path, int]
IMAGENET_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_TRIES = 10


def open_folders(folder: Path, classes: int) -> tuple[list[Sample], list[Sample]]:
    """Return the pictures below `train` and `val` with their labels; `val` has the classes of `train`."""
    names, train = class_folders(folder / "train")
    if len(names) != classes:
        raise DataError(f"{folder / 'train'}: it has {len(names)} class folders; expected {classes}.")
    return train, class_folders(folder / "val", names)[1]


class FolderBatches:
    """Pictures in batches of float32 tensors (N, 3, size, size), normalised with ImageNet's mean and std.

    For training they are shuffled, of one batch size, and with `augment` cropped at random (8% to 100% of the
    area, aspect 3:4 to 4:3) and mirrored; otherwise they are resized so that the shorter side is 8/7 of `size`, and the centre
    is taken.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        batch_size: int,
        *,
        size: int,
        seed: int = 0,
        train: bool,
        augment: bool,
        workers: int = 2,
        channels_last: bool = False,
    ) -> None:
        check_batch_size(batch_size, len(samples), train, "training set")
        check_seed(seed)
        self.pictures = _Pictures(samples, size, augment)
        self.batch_size = batch_size
        self.seed = seed
        self.train = train
        self.workers = workers
        self.normalise = normaliser(IMAGENET_MEAN, IMAGENET_STD, channels_last)

    def __len__(self) -> int:
        return batch_count(len(self.pictures), self.batch_size, self.train)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of `epoch` from batch `start` on."""
        order = epoch_order(len(self.pictures), self.seed, epoch, self.train)
        if self.train:
            order = order[: len(self) * self.batch_size]
        rest: list[int] = order[start * self.batch_size :].tolist()
        batches = [rest[first : first + self.batch_size] for first in range(0, len(rest), self.batch_size)]
        loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            self.pictures,
            # the keys of _Pictures
            batch_sampler=[[(index, self.seed, epoch) for index in share.of(batch)] for batch in batches],
            num_workers=self.workers,
            generator=torch.Generator(),  # otherwise it would draw from the global one
        )
        for images, labels in loader:
            yield self.normalise(images.permute(0, 3, 1, 2)), labels

    @property
    def facts(self) -> dict[str, Any]:
        """How many samples there are, and a digest of their names and labels; the pictures themselves are not read."""
        names = [Path(path).name for path in self.pictures.paths]
        return {"samples": len(names), "digest": fingerprint([*names, *self.pictures.labels])}


class _Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures by key: (index, seed, epoch)."""

    def __init__(self, samples: Sequence[Sample], size: int, augment: bool) -> None:
        self.paths = [str(path) for path, _ in samples]
        self.labels = [label for _, label in samples]
        self.size = size
        self.augment = augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[Tensor, int]:
        index, seed, epoch = key
        picture = open_picture(Path(self.paths[index]))
        if self.augment:
            generator = generator_for(seed, epoch, index)
            pixels: Pixels = resized_box(picture, random_box(picture.width, picture.height, generator), self.size)
            if torch.rand((), generator=generator) < 0.5:
                pixels = pixels[:, ::-1]
        else:
            pixels = resized(picture, round(self.size * 8 / 7), self.size)
        return torch.from_numpy(np.array(pixels)), self.labels[index]


def random_box(width: int, height: int, generator: torch.Generator) -> tuple[float, float, float, float]:
    """Return a random box (left, top, right, bottom) with 8% to 100% of the area and an aspect of 3:4 to 4:3.

    A box that does not fit is drawn again; after ten attempts, the largest centred square is taken.
    """
    for _ in range(_TRIES):
        area, aspect, across, down = torch.rand(4, generator=generator).tolist()
        target = width * height * (_AREA[0] + area * (_AREA[1] - _AREA[0]))
        ratio = _ASPECT[0] * (_ASPECT[1] / _ASPECT[0]) ** aspect
        box_width, box_height = (target * ratio) ** 0.5, (target / ratio) ** 0.5
        if box_width <= width and box_height <= height:
            left, top = across * (width - box_width), down * (height - box_height)
            return left, top, left + box_width, top + box_height
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


@dataclass(frozen=True)
class ImageLoaders:
    """Training batches (shuffled, all of one size) and test batches (in order, every image) of an image set.

    `shape` is channels, height, width.
    """

    name: str
    train: Batches
    test: Batches
    shape: tuple[int, int, int]
    classes: int


def image_loaders(
    name: str,
    batch_size: int,
    *,
    seed: int = 0,
    data_dir: Path | str = DEFAULT_DATA_DIR,
    download: bool = False,
    size: int | None = None,
    augment: bool | None = None,
    channels_last: bool = False,
    workers: int = 2,
    validation: float = 0.0,
    test_samples: int | None = None,
) -> ImageLoaders:
    """Return the batches of the image set `name`; `load_images` explains `data_dir`, `download` and `size`.

    `augment` None means what suits the set: crop and mirroring for colour images, nothing for grey ones,
    since signs such as digits lose their meaning in a mirror. `workers` processes decode the pictures of sets
    that are streamed. If `validation` is above 0, that share of the training images replaces the test images. `test_samples`
    limits the number of test images (None: all).
    """
    if not name.endswith(".npz") and (info := image_info(name)).streamed:
        folder = locate(info, Path(data_dir), download)
        samples = open_folders(folder, info.classes)
        if validation:
            parts = held_out(len(samples[0]), validation)
            samples = ([samples[0][index] for index in parts[0]], [samples[0][index] for index in parts[1]])
        samples = (samples[0], [samples[1][index] for index in evaluated_on(len(samples[1]), test_samples)])
        return _streamed(info, samples, batch_size, size or info.shape[-1], seed, augment, channels_last, workers)
    images = load_images(name, data_dir, download, size)
    if validation:
        images = _with_validation(images, validation)
    if test_samples is not None:
        chosen = evaluated_on(len(images.x_test), test_samples)
        images = replace(images, x_test=images.x_test[chosen], y_test=images.y_test[chosen])
    return loaders_of(images, batch_size, seed=seed, augment=augment, channels_last=channels_last)


def loaders_of(
    images: ImageSet, batch_size: int, *, seed: int = 0, augment: bool | None = None, channels_last: bool = False
) -> ImageLoaders:
    """Return the batches of a set in memory, normalised with the training images' mean and deviation."""
    mean, std = channel_statistics(images.x_train)
    train = ImageBatches(
        images.x_train,
        images.y_train,
        batch_size,
        mean=mean,
        std=std,
        seed=seed,
        shuffle=True,
        augment=images.shape[0] == 3 if augment is None else augment,
        channels_last=channels_last,
    )
    test = ImageBatches(
        images.x_test,
        images.y_test,
        batch_size,
        mean=mean,
        std=std,
        drop_last=False,
        channels_last=channels_last,
        part="test set",
    )
    return ImageLoaders(images.name, train, test, images.shape, images.classes)


def _with_validation(images: ImageSet, share: float) -> ImageSet:
    """Return the set with a `share` of its training images held out, which replaces its test images."""
    train, test = (part.numpy() for part in held_out(len(images.x_train), share))
    x, y = images.x_train, images.y_train
    return replace(images, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def _streamed(
    info: DatasetInfo,
    samples: tuple[list[Sample], list[Sample]],
    batch_size: int,
    size: int,
    seed: int,
    augment: bool | None,
    channels_last: bool,
    workers: int,
) -> ImageLoaders:
    train, test = (
        FolderBatches(
            own,
            batch_size,
            size=size,
            seed=seed,
            train=part == "train",
            augment=part == "train" and augment is not False,
            workers=workers,
            channels_last=channels_last,
        )
        for part, own in zip(("train", "test"), samples, strict=True)
    )
    return ImageLoaders(info.name, train, test, (3, size, size), info.classes)
