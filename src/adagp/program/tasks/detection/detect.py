"""From a YOLO's raw answers to detections."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.program.tasks.detection.anchors import decode, flatten, grids_of, slots
from adagp.program.tasks.detection.boxes import non_maximum_suppression, to_corners
from adagp.program.tasks.detection.precision import Detections

CANDIDATES = 300
MOST = 100
OVERLAP = 0.45


@torch.no_grad()
def detect(outputs: Sequence[Tensor]) -> list[Detections]:
    """Return what a model's answers say is in each image, best first, at most 100 objects; boxes are in corners.

    A slot can speak for several classes; its score for one is the chance of an object times that of the class. The best
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
    kept = non_maximum_suppression(boxes, labels, OVERLAP)
    found = []
    for keep, *parts in zip(kept, boxes, labels, best, strict=True):
        chosen, label, score = (part[keep][:MOST].cpu().numpy() for part in parts)
        found.append(Detections(chosen, label, score))
    return found
