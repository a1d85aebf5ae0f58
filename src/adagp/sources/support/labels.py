"""Class labels as features: the share of each class in every sample of a batch."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from adagp.errors import DataError
from adagp.layers.sites import Site


def class_count(sites: Sequence[Site], classes: int | None) -> int:
    """Return `classes`, or where it is None the rows of the model's last site: in a classifier, its classes."""
    return sites[-1].rows if classes is None else classes


def class_shares(targets: Any, classes: int) -> Tensor:
    """Return `(samples, classes)`: the one-hot label of each sample; of a sample with many labels (words), their mean.

    Negative labels mean "none" and are left out.
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() == 0:
        given = str(targets.dtype) if isinstance(targets, Tensor) else type(targets).__name__
        raise DataError(
            f"a source that sees labels needs whole numbers, one or more a sample; the targets are {given}."
        )
    labels = (targets.flatten(1) if targets.dim() > 1 else targets[:, None]).long()
    if labels.numel() and bool((labels >= classes).any()):
        raise DataError(
            f"label {int(labels.max())} is not among the {classes} classes that the source was made for "
            "(the outputs of the model's last layer, unless label_classes=... says otherwise)."
        )
    known = labels >= 0
    marks = F.one_hot(labels.clamp(min=0), classes) * known[..., None]
    return marks.sum(1).float() / known.sum(1, keepdim=True).clamp(min=1)
