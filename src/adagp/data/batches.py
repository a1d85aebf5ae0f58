"""Batches of an image set: order, augmentation, and the samples that are held out.

The images of a batch, their order and their augmentation are a pure function of seed, epoch and batch. No global random state
is read or changed, so a run resumed at any batch sees exactly the batches it would have seen.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from adagp.data.images import Labels, Pixels
from adagp.errors import OptionError


def draw_places(count: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw random crops and flips of `count` images: the corners (2, N) of the crops from images framed by `padding` pixels,
    and which images are mirrored (N,).

    All randomness comes from `generator`.
    """
    corners = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
    return corners, torch.rand(count, generator=generator) < 0.5


def crop(images: Tensor, padding: int, top: Tensor, left: Tensor) -> Tensor:
    """Frame each image with `padding` zeros and cut it back to its size, its corner at `top`, `left` (N,).

    Every stretch of W bytes of the framed batch, at any offset, is a row of one overlapping view; the crop
    picks N*C*H of those rows, which is a plain copy of W bytes each.
    """
    count, channels, height, width = images.shape
    framed = pad(images, (padding,) * 4)
    _, _, framed_height, framed_width = framed.shape
    plane = framed_height * framed_width
    planes = torch.arange(count * channels).view(count, channels, 1) * plane
    lines = (top[:, None] + torch.arange(height)) * framed_width + left[:, None]
    offsets = planes + lines[:, None, :]
    stretches = framed.as_strided((framed.numel() - width + 1, width), (1, 1))
    return stretches.index_select(0, offsets.reshape(-1)).view_as(images)


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror the images whose flag in `mirrored` (N,) is set, left to right, in place."""
    chosen = mirrored.nonzero().squeeze(1)
    return images.index_copy_(0, chosen, images.index_select(0, chosen).flip(3))


Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, in units of a uint8 pixel."""


Samples = TypeVar("Samples", Tensor, list[int])


@dataclass(frozen=True)
class Share:
    """Part number `index` of `count` equal parts of every batch: consecutive samples, for one of several processes."""

    index: int = 0
    count: int = 1

    def of(self, samples: Samples) -> Samples:
        """Return this part of a batch's samples."""
        size = len(samples) // self.count
        return samples[self.index * size : (self.index + 1) * size]


WHOLE = Share()


class Batches(Protocol):
    """The interface between the training loop and its data."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of the batches `start`, `start` + 1, ... of `epoch`; both count from 0.

        Only the part `share` of each batch is read; together the shares are the batch.
        """

    @property
    def facts(self) -> dict[str, Any]:
        """How many `samples` there are, and a `digest` of them."""


class ImageBatches:
    """The images of one part of a set in batches of float32 tensors (N, C, H, W) with int64 labels (N,).

    `images` are uint8 (N, H, W, C); `mean` and `std` are the training set's, a number per channel
    (`channel_statistics`). `augment` shifts images by up to an eighth of their height (4 pixels of 32) and
    mirrors every second one. With `drop_last`, the choice for training, every batch has the same size and the
    surplus of an epoch is left out: different images in each epoch, if shuffled. `part` names the set in errors.
    """

    def __init__(
        self,
        images: Pixels,
        labels: Labels,
        batch_size: int,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int = 0,
        shuffle: bool = False,
        augment: bool = False,
        drop_last: bool = True,
        channels_last: bool = False,
        part: str = "training set",
    ) -> None:
        check_batch_size(batch_size, len(images), drop_last, part)
        check_seed(seed)
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.padding = images.shape[1] // 8 if augment else 0
        self.augment = augment
        self.normalise = normaliser(mean, std, channels_last)
        self.images = torch.from_numpy(np.moveaxis(images, 3, 1).copy(order="C"))
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return batch_count(len(self.images), self.batch_size, self.drop_last)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of `epoch` from batch `start` on."""
        order = epoch_order(len(self.images), self.seed, epoch, self.shuffle)
        for batch in range(start, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self._images(chosen, epoch, batch, share), self.labels[share.of(chosen)]

    @property
    def facts(self) -> dict[str, Any]:
        """How many samples there are, and a digest of their pixels and labels."""
        return {"samples": len(self.images), "digest": fingerprint([self.images.numpy(), self.labels.numpy()])}

    def _images(self, chosen: Tensor, epoch: int, batch: int, share: Share) -> Tensor:
        images = self.images.index_select(0, share.of(chosen))
        if self.augment:
            corners, mirrored = draw_places(len(chosen), self.padding, generator_for(self.seed, epoch, batch))
            top, left = (share.of(corner) for corner in corners)
            images = flip(crop(images, self.padding, top, left), share.of(mirrored))
        return self.normalise(images)


def normaliser(mean: Sequence[float], std: Sequence[float], channels_last: bool) -> Callable[[Tensor], Tensor]:
    """Return a function that turns uint8 images (N, C, H, W) into float32 ones with about mean 0 and deviation 1."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    means = torch.tensor(mean).view(-1, 1, 1)
    scales = 1 / torch.tensor(std).view(-1, 1, 1)
    return lambda images: images.contiguous(memory_format=memory_format).float().sub_(means).mul_(scales)


def channel_statistics(images: Pixels) -> Statistics:
    """Return mean and standard deviation of each channel of `images` (N, H, W, C).

    They are computed from counts of the 256 values, so they are exact up to one rounding. A channel that
    never changes gets the deviation 1, so that dividing by it is harmless.
    """
    values = np.arange(256)
    mean, std = [], []
    for channel in range(images.shape[-1]):
        pixels = torch.from_numpy(images[..., channel].flatten())  # torch counts bytes faster than numpy
        share = torch.bincount(pixels, minlength=256).numpy() / len(pixels)
        mean.append(float(share @ values))
        std.append(float(np.sqrt(share @ (values - mean[-1]) ** 2)) or 1.0)
    return tuple(mean), tuple(std)


def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool) -> Tensor:
    """Return the order of the samples in an epoch."""
    return torch.randperm(samples, generator=generator_for(seed, epoch)) if shuffle else torch.arange(samples)


def generator_for(*key: int) -> torch.Generator:
    """Return a generator for a position in a run, such as (seed, epoch, batch); generators of other positions are unrelated."""
    return torch.Generator().manual_seed(seed_for(*key))


def seed_for(*key: int) -> int:
    """Return a well mixed 64-bit seed for a position in a run."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")


def fingerprint(content: Iterable[Any]) -> str:
    """Return a short digest of arrays, texts and plain values."""
    digest = hashlib.blake2b(digest_size=8)
    for item in content:
        is_array = isinstance(item, np.ndarray)
        digest.update(item.reshape(-1).view(np.uint8).data if is_array else f"{item}\n".encode("utf-8", "replace"))
    return digest.hexdigest()


def batch_count(samples: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches `samples` make."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


def check_batch_size(batch_size: int, samples: int, drop_last: bool, part: str) -> None:
    """Raise if an epoch would have no batch of this size."""
    if batch_size < 1:
        raise OptionError(f"batch size {batch_size} is not allowed; choose 1 to {samples}.")
    if drop_last and batch_size > samples:
        raise OptionError(
            f"batch size {batch_size} is larger than the {part} of {samples} samples; choose 1 to {samples}."
        )


def check_seed(seed: int) -> None:
    """Raise if the seed is negative."""
    if seed < 0:
        raise OptionError(f"seed {seed} is not allowed; it must be 0 or more.")


_SPLIT, _EVALUATED = -2, -3
"""Keys of these choices for `generator_for`. They contain no seed, so all runs make the same choices."""


def held_out(samples: int, share: float) -> tuple[Tensor, Tensor]:
    """Return the indices of the samples to train on and of those held out, both sorted; the same for every seed."""
    count = held_out_count(samples, share)
    order = torch.randperm(samples, generator=generator_for(_SPLIT, samples))
    return order[count:].sort().values, order[:count].sort().values


def evaluated_on(samples: int, most: int | None) -> list[int]:
    """Return the sorted indices of the test samples to evaluate on: at most `most`, drawn at random, the same in all runs."""
    if most is None or most >= samples:
        return list(range(samples))
    chosen = torch.randperm(samples, generator=generator_for(_EVALUATED, samples))[:most]
    return sorted(chosen.tolist())


def held_out_count(samples: int, share: float) -> int:
    """Return the number of samples in a share; raise if one of the two parts would be empty."""
    count = round(samples * share)
    if not 1 <= count < samples:
        raise OptionError(
            f"--validation is {share:g}, which holds out {count} of {samples} training samples; each part needs at least one."
        )
    return count
