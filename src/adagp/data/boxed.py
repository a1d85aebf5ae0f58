"""Batches of pictures with boxes: a pure function of seed, epoch and batch, like those of `adagp.data.batches`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
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
from adagp.data.letterbox import letterboxed, read_letterboxed
from adagp.data.stream import IMAGENET_MEAN, IMAGENET_STD
from adagp.data.voc import Annotated

MEMORY = 1 << 30
"""Bytes up to which the pictures of a part are decoded once and kept; larger parts are decoded batch by batch."""
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
        held = len(samples) * size * size * 3 <= MEMORY
        self._pixels = torch.from_numpy(read_letterboxed(samples, size)) if held else None
        self._boxes, self._labels = self._targets()
        self._mean = torch.tensor(IMAGENET_MEAN).view(-1, 1, 1)
        self._scale = 1 / torch.tensor(IMAGENET_STD).view(-1, 1, 1)

    def __len__(self) -> int:
        """Return the batches in an epoch."""
        return batch_count(len(self.samples), self.batch_size, self.train)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[BoxedBatch]:
        """Yield the batches of `epoch` from batch `start` on."""
        order = epoch_order(len(self.samples), self.seed, epoch, self.train)
        for batch in range(start, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            mine = share.of(chosen)
            images, boxes, labels = self._images(mine), self._boxes[mine], self._labels[mine]
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
        return {
            "samples": len(names),
            "digest": fingerprint([*names, self._boxes.numpy(), self._labels.numpy()]),
        }

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

    A negative scale mirrors; shifts are in units of the side. What comes from outside an image is 0.
    """
    inverse = torch.diag_embed(1 / scale)
    place = -2 * shift / scale  # affine_grid's side is 2 long, and it asks where each pixel comes from
    theta = torch.cat([inverse, place[..., None]], 2)
    return grid_sample(images, affine_grid(theta, list(images.shape), align_corners=False), align_corners=False)


def move_boxes(boxes: Tensor, labels: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Move boxes `(N, M, 4)` as `move_images` moves the images, cut them at the border, and drop what is hardly seen.

    An object is dropped (its label becomes -1) if less than 30% of its area is left, or a side is under 1% of the image's.
    """
    scale, shift = scale[:, None], shift[:, None]
    centre, half = (boxes[..., :2] - 0.5) * scale + shift + 0.5, boxes[..., 2:] * scale.abs() / 2
    low, high = (centre - half).clamp(0, 1), (centre + half).clamp(0, 1)
    sides = high - low
    seen = (sides.prod(-1) >= _VISIBLE * (2 * half).prod(-1)) & (sides.amin(-1) >= _SMALLEST)
    return torch.cat([(low + high) / 2, sides], -1), torch.where(seen, labels, -1)
