"""Boxes: their overlap, and which of many to keep."""

import torch
from torch import Tensor


def to_corners(boxes: Tensor) -> Tensor:
    """Return boxes `(..., 4)` from (centre x, centre y, width, height) as (left, top, right, bottom)."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return intersection over union of boxes in corners, `(..., A, 4)` and `(..., B, 4)`, as `(..., A, B)`.

    Boxes without area overlap nothing, themselves included.
    """
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1) for boxes in (first, second)]
    union = areas[0][..., :, None] + areas[1][..., None, :] - common
    return common / union.clamp(min=torch.finfo(union.dtype).tiny)


def non_maximum_suppression(corners: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Tell which boxes to keep: `(..., K)` for boxes `(..., K, 4)`, best first, that compete within their group (class).

    A box is dropped if it overlaps a better one *that is kept* by more than `threshold`. Instead of walking down the list,
    all boxes are judged at once, over and over, each time with the last verdicts on the better ones: the best is right
    from the start, and each round settles at least one more place, in practice all after a few. No compiled operator is
    needed, and leading dimensions (images) are done at once.
    """
    rivals = (pairwise_iou(corners, corners) > threshold) & (groups[..., :, None] == groups[..., None, :])
    better = rivals.triu(diagonal=1)  # [..., j, i]: j comes before i and competes with it
    kept = torch.ones_like(groups, dtype=torch.bool)
    while True:
        judged = ~(better & kept[..., :, None]).any(-2)
        if torch.equal(judged, kept):
            return kept
        kept = judged
