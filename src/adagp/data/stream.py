"""Batches of pictures in folders, decoded while training by worker processes: for sets too large for memory.

As with sets in memory, a batch is a pure function of seed, epoch and batch: every picture's crop is drawn
from a generator of its own, whichever worker decodes it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from adagp.data.batches import (
    WHOLE,
    Share,
    batch_count,
    check_batch_size,
    check_seed,
    epoch_order,
    fingerprint,
    generator_for,
    normaliser,
)
from adagp.data.images import Pixels
from adagp.data.pictures import class_folders, open_picture, resized, resized_box
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
    area, aspect 3:4 to 4:3) and mirrored; otherwise the centre is taken after the shorter side became 8/7 of
    `size`.
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
        """Return the batches in an epoch."""
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
            # keys of our own, which _Pictures understands
            batch_sampler=[[(index, self.seed, epoch) for index in share.of(batch)] for batch in batches],
            num_workers=self.workers,
            generator=torch.Generator(),  # or else it draws from the global one
        )
        for images, labels in loader:
            yield self.normalise(images.permute(0, 3, 1, 2)), labels

    @property
    def facts(self) -> dict[str, Any]:
        """How many samples there are, and a digest of their names and labels; the pictures themselves are not read."""
        names = [Path(path).name for path in self.pictures.paths]
        return {"samples": len(names), "digest": fingerprint([*names, *self.pictures.labels])}


class _Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures by place: index, seed and epoch."""

    def __init__(self, samples: Sequence[Sample], size: int, augment: bool) -> None:
        self.paths = [str(path) for path, _ in samples]
        self.labels = [label for _, label in samples]
        self.size = size
        self.augment = augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: tuple[int, int, int]) -> tuple[Tensor, int]:
        index, seed, epoch = place
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
    """Return a random part (left, top, right, bottom): 8% to 100% of the area, aspect 3:4 to 4:3.

    Parts that do not fit are drawn again, ten times at most; then the largest centred square is taken.
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
