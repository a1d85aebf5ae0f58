"""Random crop and mirroring of a whole batch at once, on bytes."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def draw_places(count: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return of `count` images where each is cut out of its frame of `padding` pixels (2, N), and which are mirrored (N,).

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
