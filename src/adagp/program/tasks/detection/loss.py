"""The loss of YOLO-v3: where the boxes are, whether something is there, and what it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from adagp.program.tasks.detection.anchors import Grid, Slots, assign, decode, encode, flatten, grids_of, pick, slots
from adagp.program.tasks.detection.boxes import pairwise_iou, to_corners

IGNORED_OVERLAP = 0.5
"""A slot that answers for no object but whose box overlaps one by more than this is not blamed for it."""


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
    """Return the parts of the loss for a model's answers (`adagp.models.yolo` says their layout).

    `boxes` `(N, M, 4)` and `labels` `(N, M)` are the objects, with the label -1 where an image has fewer than M. Each object
    is answered for by one slot (`anchors.assign`). Box: squared errors of the centre inside its cell and of tw, th, small
    boxes weighted up to twice. Category: binary cross-entropy over the classes. Objectness: binary cross-entropy over all
    slots but the ignored ones.
    """
    raw, grids = flatten(outputs), grids_of(outputs)
    all_slots = slots(grids, raw.device)
    image, slot, truth, label = _answering(grids, boxes, labels)
    answer, aim = raw[image, slot], encode(truth, pick(all_slots, slot))
    error = torch.cat([answer[:, :2].sigmoid() - aim[:, :2], answer[:, 2:4] - aim[:, 2:]], 1)
    weight = 2 - truth[:, 2:].prod(1, keepdim=True)
    kinds = answer[:, 5:]
    category = binary_cross_entropy_with_logits(kinds, one_hot(label, kinds.shape[1]).to(kinds.dtype), reduction="sum")
    wanted = torch.zeros_like(raw[..., 4])
    wanted[image, slot] = 1
    counted = (wanted == 1) | ~_overlapping(raw, all_slots, boxes, labels)
    objectness = binary_cross_entropy_with_logits(raw[..., 4], wanted, counted.to(raw.dtype), reduction="sum")
    return LossParts((weight * error.square()).sum(), objectness, category, len(label))


def right_classes(outputs: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Return how many objects get their right class from the slot that answers for them, and how many objects there are."""
    image, slot, _, label = _answering(grids_of(outputs), boxes, labels)
    return (flatten(outputs)[image, slot, 5:].argmax(1) == label).sum(), len(label)


def _answering(grids: Sequence[Grid], boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return of each object the number of its image, the slot that answers for it, its box and its label."""
    image, place = (labels >= 0).nonzero(as_tuple=True)
    truth = boxes[image, place]
    return image, assign(truth, grids), truth, labels[image, place]


@torch.no_grad()
def _overlapping(raw: Tensor, at: Slots, boxes: Tensor, labels: Tensor) -> Tensor:
    """Tell which slots `(N, S)` put their box over some object, by more than `IGNORED_OVERLAP`."""
    overlaps = pairwise_iou(to_corners(decode(raw[..., :4], at)), to_corners(boxes))
    return ((overlaps > IGNORED_OVERLAP) & (labels[:, None, :] >= 0)).any(-1)
