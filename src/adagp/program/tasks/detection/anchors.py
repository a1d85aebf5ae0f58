"""Between a YOLO's raw numbers and boxes: anchors, slots, target assignment, encoding and decoding.

A **slot** is one anchor in one cell of one scale. The slots of all scales stand in one row, finest scale first, then anchor,
row, column: the order in which `flatten` lays out a model's answers. The nine anchors are those of YOLO-v3, found by its
authors from the boxes of COCO, on images of 416 pixels; as shares of the image's side they go with any input size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Grid = tuple[int, int]
"""Rows and columns of a scale."""

ANCHORS = (
    ((10 / 416, 13 / 416), (16 / 416, 30 / 416), (33 / 416, 23 / 416)),
    ((30 / 416, 61 / 416), (62 / 416, 45 / 416), (59 / 416, 119 / 416)),
    ((116 / 416, 90 / 416), (156 / 416, 198 / 416), (373 / 416, 326 / 416)),
)
"""Width and height of the three anchors of each scale, as shares of the image's side."""

_LARGEST = 8.0  # exp(8) anchors is far outside every image, and finite


@dataclass(frozen=True)
class Slots:
    """All slots of a set of grids: `cell` (column, row), `grid` (columns, rows) and `anchor` (width, height), each `(S, 2)`."""

    cell: Tensor
    grid: Tensor
    anchor: Tensor


def slots(grids: Sequence[Grid], device: torch.device | None = None) -> Slots:
    """Return the slots of `grids`, finest first, in the order of `flatten`."""
    cell, grid, anchor = [], [], []
    for (rows, columns), shapes in zip(grids, ANCHORS, strict=True):
        size = (len(shapes), rows, columns, 2)
        down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        cell.append(torch.stack([across, down], -1).expand(size).reshape(-1, 2))
        grid.append(torch.tensor([columns, rows]).expand(size).reshape(-1, 2))
        anchor.append(torch.tensor(shapes)[:, None, None].expand(size).reshape(-1, 2))
    return Slots(*(torch.cat(parts).float().to(device) for parts in (cell, grid, anchor)))


def grids_of(outputs: Sequence[Tensor]) -> list[Grid]:
    """Return rows and columns of each scale of a model's answers."""
    return [(output.shape[2], output.shape[3]) for output in outputs]


def flatten(outputs: Sequence[Tensor]) -> Tensor:
    """Return a model's answers, `(N, anchors, rows, columns, numbers)` a scale, as `(N, S, numbers)`."""
    return torch.cat([output.flatten(1, 3) for output in outputs], 1)


def decode(raw: Tensor, at: Slots) -> Tensor:
    """Return the boxes `(..., S, 4)` that the raw tx, ty, tw, th `(..., S, 4)` stand for."""
    centre = (raw[..., :2].sigmoid() + at.cell) / at.grid
    return torch.cat([centre, raw[..., 2:4].clamp(max=_LARGEST).exp() * at.anchor], -1)


def encode(boxes: Tensor, at: Slots) -> Tensor:
    """Return what the answers of slots should be for `boxes` `(S, 4)`: the centre inside its cell (0 to 1), and tw, th.

    `decode` undoes it once the logit of the first two has been taken.
    """
    return torch.cat([boxes[:, :2] * at.grid - at.cell, (boxes[:, 2:] / at.anchor).log()], -1)


def assign(boxes: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Return the slot `(B,)` that answers for each of `boxes` `(B, 4)`.

    It is the anchor, of all nine, whose shape overlaps the box's most when both are centred on one another (the first of
    equals), in the cell in which the box's centre lies.
    """
    anchors = torch.tensor(ANCHORS, device=boxes.device).flatten(0, 1)
    common = torch.minimum(boxes[:, None, 2:], anchors).prod(-1)
    overlap = common / (boxes[:, 2:].prod(-1, keepdim=True) + anchors.prod(-1) - common)
    best = overlap.argmax(1)
    sizes = torch.tensor(grids, device=boxes.device)
    each = len(ANCHORS[0])
    starts = (sizes.prod(1) * each).cumsum(0) - sizes.prod(1) * each
    scale, anchor = best // each, best % each
    rows, columns = sizes[scale].unbind(1)
    row, column = (
        torch.minimum((boxes[:, axis] * length).long().clamp(min=0), length - 1)
        for axis, length in ((1, rows), (0, columns))
    )
    return starts[scale] + (anchor * rows + row) * columns + column


def pick(all_slots: Slots, chosen: Tensor) -> Slots:
    """Return the slots with the numbers `chosen`."""
    return Slots(all_slots.cell[chosen], all_slots.grid[chosen], all_slots.anchor[chosen])
