"""Average precision at an overlap of one half, by pycocotools (the `detect` extra).

torchmetrics' figure is the same library's, behind torchvision; this asks it directly.
"""

import importlib.util
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.data.voc import Objects
from adagp.errors import OptionError


@dataclass(frozen=True, eq=False)
class Detections:
    """What was found in one image: `corners` `(n, 4)`, `labels` `(n,)`, `scores` `(n,)`."""

    corners: NDArray[np.float32]
    labels: NDArray[np.int64]
    scores: NDArray[np.float32]


def require_pycocotools() -> None:
    """Refuse to continue where the library is missing: at the start of a run, not at its end."""
    if importlib.util.find_spec("pycocotools") is None:
        raise OptionError("pycocotools is needed for mean average precision: pip install 'adagp[detect]'.")


def average_precisions(found: Sequence[Detections], truth: Sequence[Objects], classes: int) -> NDArray[np.float64]:
    """Return COCO's average precision at IoU 0.5 of each class, NaN for a class without an object that counts.

    It is the precision averaged over 101 recalls from 0 to 1, each the best at this recall or a higher one; at most 100
    detections of a class an image count. The first detection of a difficult object is neither right nor wrong.
    """
    answers = _answers(found)
    if not answers:
        present = {int(label) for each in truth for label in each.labels[~each.difficult]}
        return np.array([0.0 if label in present else np.nan for label in range(classes)])
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with redirect_stdout(io.StringIO()):  # it talks while it works
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


def _answers(found: Sequence[Detections]) -> list[dict[str, Any]]:
    return [
        {"image_id": image, "category_id": label, "bbox": box, "score": score}
        for image, each in enumerate(found)
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
