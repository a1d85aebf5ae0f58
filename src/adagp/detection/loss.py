"""The loss of YOLO-v3: where the boxes are, whether something is there, and what it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from adagp.detection.anchors import assign, decode, encode, flatten, grids_of, pick, slots
from adagp.detection.boxes import pairwise_iou, to_corners

IGNORED_OVERLAP = 0.5
"""A slot that answers for no object but whose box overlaps one by more than this is not blamed for it."""


@dataclass(frozen=True)
class LossParts:
    """Sums over a batch, the number of objects, and how many of them were given their right class."""

    box: Tensor
    objectness: Tensor
    category: Tensor
    right: Tensor
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
    image, place = (labels >= 0).nonzero(as_tuple=True)
    truth, label = boxes[image, place], labels[image, place]
    slot = assign(truth, grids)
    answer, aim = raw[image, slot], encode(truth, pick(all_slots, slot))
    error = torch.cat([answer[:, :2].sigmoid() - aim[:, :2], answer[:, 2:4] - aim[:, 2:]], 1)
    weight = 2 - truth[:, 2:].prod(1, keepdim=True)
    kinds = answer[:, 5:]
    category = binary_cross_entropy_with_logits(kinds, one_hot(label, kinds.shape[1]).to(kinds.dtype), reduction="sum")
    wanted = torch.zeros_like(raw[..., 4])
    wanted[image, slot] = 1
    with torch.no_grad():
        overlaps = pairwise_iou(to_corners(decode(raw[..., :4], all_slots)), to_corners(boxes))
        best = torch.where(labels[:, None, :] >= 0, overlaps, 0).amax(-1)
        counted = (wanted == 1) | (best <= IGNORED_OVERLAP)
    objectness = binary_cross_entropy_with_logits(raw[..., 4], wanted, counted.to(raw.dtype), reduction="sum")
    right = (kinds.argmax(1) == label).sum()
    return LossParts((weight * error.square()).sum(), objectness, category, right, len(label))
