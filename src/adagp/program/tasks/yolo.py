"""The mathematics of YOLO-v3: boxes and their overlap, anchors, targets, loss, non-maximum suppression, average precision.

Lengths are in units of the image's side (0 to 1). A box is (centre x, centre y, width, height) unless it is said to be in
corners: (left, top, right, bottom).

A **slot** is one anchor in one cell of one scale. The slots of all scales stand in one row, finest scale first, then anchor,
row, column: the order in which `flatten` lays out a model's outputs. The nine anchors are those of YOLO-v3, found by its
authors from the boxes of COCO, on images of 416 pixels; as shares of the image's side they go with any input size.
"""

import importlib.util
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from adagp.data.detection import Objects
from adagp.errors import OptionError

Grid = tuple[int, int]
"""Rows and columns of a scale."""

ANCHORS = (
    ((10 / 416, 13 / 416), (16 / 416, 30 / 416), (33 / 416, 23 / 416)),
    ((30 / 416, 61 / 416), (62 / 416, 45 / 416), (59 / 416, 119 / 416)),
    ((116 / 416, 90 / 416), (156 / 416, 198 / 416), (373 / 416, 326 / 416)),
)
"""Width and height of the three anchors of each scale, as shares of the image's side."""

_LARGEST = 8.0  # exp(8) anchors is far outside every image, and finite
IGNORED_OVERLAP = 0.5
"""A slot that is responsible for no object, but whose box overlaps one by more than this, has no objectness loss."""
CANDIDATES = 300
MOST = 100
OVERLAP = 0.45


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
    """Return which boxes to keep: `(..., K)` for boxes `(..., K, 4)`, best first, that compete within their group (class).

    A box is dropped if it overlaps a better one *that is kept* by more than `threshold`. Instead of walking down the list, each
    round judges all boxes at once, by the boxes that the previous round kept. The best box is right from the start, and each
    round settles at least the next one; in practice all are settled after a few rounds. This needs no compiled operator, and
    leading dimensions (images) are processed at once.
    """
    rivals = (pairwise_iou(corners, corners) > threshold) & (groups[..., :, None] == groups[..., None, :])
    better = rivals.triu(diagonal=1)  # [..., j, i]: j comes before i and competes with it
    survivors = torch.ones_like(groups, dtype=torch.bool)
    while True:
        judged = ~(better & survivors[..., :, None]).any(-2)
        if torch.equal(judged, survivors):
            return survivors
        survivors = judged


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
    """Return the targets of slots for `boxes` `(S, 4)`: the centre inside its cell (0 to 1), and tw, th.

    `decode` undoes it once the logit of the first two has been taken.
    """
    return torch.cat([boxes[:, :2] * at.grid - at.cell, (boxes[:, 2:] / at.anchor).log()], -1)


def assign(boxes: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Return the slot `(B,)` that is responsible for each of `boxes` `(B, 4)`.

    It is the anchor, of all nine, whose shape overlaps the box's most when both are centred on one another (the first of
    equals), in the cell in which the box's centre lies.
    """
    anchors = torch.tensor(ANCHORS, device=boxes.device).flatten(0, 1)
    common = torch.minimum(boxes[:, None, 2:], anchors).prod(-1)
    overlap = common / (boxes[:, 2:].prod(-1, keepdim=True) + anchors.prod(-1) - common)
    best = overlap.argmax(1)
    sizes = torch.tensor(grids, device=boxes.device)
    per_scale = len(ANCHORS[0])
    slot_counts = sizes.prod(1) * per_scale
    starts = slot_counts.cumsum(0) - slot_counts
    scale, anchor = best // per_scale, best % per_scale
    rows, columns = sizes[scale].unbind(1)
    row, column = (
        torch.minimum((boxes[:, axis] * length).long().clamp(min=0), length - 1)
        for axis, length in ((1, rows), (0, columns))
    )
    return starts[scale] + (anchor * rows + row) * columns + column


def pick(all_slots: Slots, chosen: Tensor) -> Slots:
    """Return the slots with the numbers `chosen`."""
    return Slots(all_slots.cell[chosen], all_slots.grid[chosen], all_slots.anchor[chosen])


@dataclass(frozen=True)
class LossParts:
    """Sums over a batch, and the number of its objects."""

    box: Tensor
    objectness: Tensor
    category: Tensor
    objects: int

    @property
    def total(self) -> Tensor:
        """The sum of the three parts."""
        return self.box + self.objectness + self.category


def loss_parts(outputs: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> LossParts:
    """Return the parts of the loss for a model's outputs (`adagp.models.yolo` has their layout).

    `boxes` `(N, M, 4)` and `labels` `(N, M)` are the objects; images with fewer than M are filled up with label -1. Each object
    has one responsible slot (`assign`). Box: squared errors of the centre inside its cell and of tw, th, small boxes weighted
    up to twice. Category: binary cross-entropy over the classes. Objectness: binary cross-entropy over all slots but the
    ignored ones.
    """
    raw, grids = flatten(outputs), grids_of(outputs)
    all_slots = slots(grids, raw.device)
    image, slot, truth, label = _responsible(grids, boxes, labels)
    prediction, target = raw[image, slot], encode(truth, pick(all_slots, slot))
    error = torch.cat([prediction[:, :2].sigmoid() - target[:, :2], prediction[:, 2:4] - target[:, 2:]], 1)
    weight = 2 - truth[:, 2:].prod(1, keepdim=True)
    logits = prediction[:, 5:]
    classes = one_hot(label, logits.shape[1]).to(logits.dtype)
    category = binary_cross_entropy_with_logits(logits, classes, reduction="sum")
    objectness_target = torch.zeros_like(raw[..., 4])
    objectness_target[image, slot] = 1
    counted = (objectness_target == 1) | ~_overlapping(raw, all_slots, boxes, labels)
    objectness = binary_cross_entropy_with_logits(
        raw[..., 4], objectness_target, counted.to(raw.dtype), reduction="sum"
    )
    return LossParts((weight * error.square()).sum(), objectness, category, len(label))


def right_classes(outputs: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Return for how many objects the responsible slot predicts the right class, and how many objects there are."""
    image, slot, _, label = _responsible(grids_of(outputs), boxes, labels)
    return (flatten(outputs)[image, slot, 5:].argmax(1) == label).sum(), len(label)


def _responsible(grids: Sequence[Grid], boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return for each object the number of its image, the responsible slot, its box and its label."""
    image, slot = (labels >= 0).nonzero(as_tuple=True)
    truth = boxes[image, slot]
    return image, assign(truth, grids), truth, labels[image, slot]


@torch.no_grad()
def _overlapping(raw: Tensor, at: Slots, boxes: Tensor, labels: Tensor) -> Tensor:
    """Return which slots `(N, S)` overlap some object by more than `IGNORED_OVERLAP`."""
    overlaps = pairwise_iou(to_corners(decode(raw[..., :4], at)), to_corners(boxes))
    return ((overlaps > IGNORED_OVERLAP) & (labels[:, None, :] >= 0)).any(-1)


@dataclass(frozen=True, eq=False)
class Detections:
    """What was found in one image: `corners` `(n, 4)`, `labels` `(n,)`, `scores` `(n,)`."""

    corners: NDArray[np.float32]
    labels: NDArray[np.int64]
    scores: NDArray[np.float32]


@torch.no_grad()
def detect(outputs: Sequence[Tensor]) -> list[Detections]:
    """Return the objects detected in each image, best first, at most 100 objects; boxes are in corners.

    A slot can detect several classes; its score for one is the probability of an object times that of the class. The best
    300 (slot, class) pairs of an image are candidates, and those that overlap a better one of their class by more than 0.45
    are dropped. No score is too low: precision and recall are judged over all of them.
    """
    raw = flatten(outputs)
    corners = to_corners(decode(raw[..., :4], slots(grids_of(outputs), raw.device))).clamp(0, 1)
    scores = raw[..., 4:5].sigmoid() * raw[..., 5:].sigmoid()
    classes = scores.shape[-1]
    best, index = scores.flatten(1).topk(min(CANDIDATES, scores[0].numel()))
    labels = index % classes
    boxes = corners.gather(1, (index // classes)[..., None].expand(-1, -1, 4))
    surviving = non_maximum_suppression(boxes, labels, OVERLAP)
    detections = []
    for keep, *parts in zip(surviving, boxes, labels, best, strict=True):
        chosen, label, score = (part[keep][:MOST].cpu().numpy() for part in parts)
        detections.append(Detections(chosen, label, score))
    return detections


def require_pycocotools() -> None:
    """Raise if the library is missing, at the start of a run rather than at its end."""
    if importlib.util.find_spec("pycocotools") is None:
        raise OptionError("pycocotools is needed for mean average precision: pip install '.[detect]'.")


def average_precisions(detections: Sequence[Detections], truth: Sequence[Objects], classes: int) -> NDArray[np.float64]:
    """Return COCO's average precision at IoU 0.5 of each class, NaN for a class without an object that counts.

    It is the precision averaged over 101 recalls from 0 to 1, each the best at this recall or a higher one; at most 100
    detections of a class an image count. The first detection of a difficult object is neither right nor wrong.
    """
    answers = _answers(detections)
    if not answers:
        present = {int(label) for each in truth for label in each.labels[~each.difficult]}
        return np.array([0.0 if label in present else np.nan for label in range(classes)])
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with redirect_stdout(io.StringIO()):  # pycocotools prints while it works
        reference = COCO()
        reference.dataset = _reference(truth, classes)
        reference.createIndex()
        judge = COCOeval(reference, reference.loadRes(answers), "bbox")
        judge.params.iouThrs = np.array([0.5])
        judge.params.maxDets = [100]
        judge.params.areaRng, judge.params.areaRngLbl = [[0, 1e10]], ["all"]
        judge.evaluate()
        judge.accumulate()
    precision = judge.eval["precision"][0, :, :, 0, 0]  # recalls x classes; -1 where a class has no object
    return np.where((precision > -1).all(0), precision.mean(0), np.nan)


def _answers(detections: Sequence[Detections]) -> list[dict[str, Any]]:
    return [
        {"image_id": image, "category_id": label, "bbox": box, "score": score}
        for image, each in enumerate(detections)
        for label, box, score in zip(each.labels.tolist(), _boxes(each.corners), each.scores.tolist(), strict=True)
    ]


def _reference(truth: Sequence[Objects], classes: int) -> dict[str, Any]:
    """Return the objects in COCO's layout. A difficult one has an area outside the range that is judged."""
    annotations = [
        {"image_id": image, "category_id": label, "bbox": box, "area": -1.0 if difficult else box[2] * box[3]}
        for image, each in enumerate(truth)
        for label, box, difficult in zip(
            each.labels.tolist(), _boxes(each.corners), each.difficult.tolist(), strict=True
        )
    ]
    for number, annotation in enumerate(annotations, start=1):  # 0 would read as "matched with nothing"
        annotation |= {"id": number, "iscrowd": 0}
    return {
        "info": {},
        "images": [{"id": image} for image in range(len(truth))],
        "categories": [{"id": label} for label in range(classes)],
        "annotations": annotations,
    }


def _boxes(corners: NDArray[np.float32]) -> list[list[float]]:
    """Return corners as COCO has them: left, top, width, height."""
    boxes: list[list[float]] = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
    return boxes
