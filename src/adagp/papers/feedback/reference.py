"""What the recent batches by backprop were like, so that predictions need only tell how a batch differs from them.

A linear fit errs in the same direction batch after batch. So a GP batch takes the running mean of the true gradients, and adds
by how much its prediction differs from the prediction for those same batches. That prediction is never made: a weight gradient
is linear in the inputs, weighted with the error's features, so a running mean of these weighted inputs stands for it, and is
subtracted from the batch's own before the one weight gradient is taken.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.papers.feedback.regression import CallSums


class Reference:
    """Running means over a site's batches by backprop.

    `truth` is that of the true gradient, `inputs` `(K + 1, inputs)` that of the inputs, weighted with the K differences of the
    error's features from their mean and, last, plainly added up; `error` `(1, K)` is that of the features' mean.
    """

    def __init__(self) -> None:
        self.truth: Tensor | None = None
        self.inputs: Tensor | None = None
        self.error: Tensor | None = None
        self.sums = CallSums()

    @torch.no_grad()
    def commit(self, truth: Tensor, weight: float) -> None:
        """Let the means move by `weight` towards the batch that was added to `sums`, whose true gradient this is."""
        if not self.sums.rows:
            return
        inputs, error = self.sums.total(), torch.stack([rows.mean for rows in self.sums.rows]).mean(0)
        if self.truth is None:
            self.truth, self.inputs, self.error = truth.detach().clone(), inputs, error
        else:
            if self.inputs is None or self.error is None:  # of an older run folder: there was nothing to subtract
                self.inputs, self.error = torch.zeros_like(inputs), torch.zeros_like(error)
            self.truth.lerp_(truth.to(self.truth.dtype), weight)
            self.inputs.lerp_(inputs, weight)
            self.error.lerp_(error, weight)
        self.drop()

    def drop(self) -> None:
        """Forget what was added since the last commit."""
        self.sums = CallSums()

    @torch.no_grad()
    def subtract(self, mixed: Tensor, inverse: Tensor, share: float) -> None:
        """Take `share` of what was mixed of recent batches off the inputs `mixed` of a batch `(K + 2, inputs)`, in place.

        Their part that all rows of a batch have in common goes into the last row. It is a product of two means in the place of
        the mean of a product: the same but for how the sum of a batch's inputs goes with its mean error.
        """
        assert self.inputs is not None, "something is known"
        mixed[:-2].addmm_(inverse, self.inputs[:-1], alpha=-share)
        torch.mul(self.inputs[-1], -share, out=mixed[-1])

    def state_dict(self) -> dict[str, Any]:
        """Return the means."""
        return {
            name: None if one is None else one.clone()
            for name, one in (("truth", self.truth), ("inputs", self.inputs), ("error", self.error))
        }

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "Reference":
        """Return the one whose `state_dict` this was."""
        found = cls()
        found.truth, found.inputs, found.error = state["truth"], state["inputs"], state["error"]
        return found


def known(references: Mapping[int, Reference], site: Site) -> Reference | None:
    """Return the reference of a site, if there is one that has seen a batch."""
    found = references.get(site.index)
    return found if found is not None and found.inputs is not None else None


def references_in(state: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the states of the references in that of a source, by site; those without a true gradient are left out.

    It is left out of a checkpoint's common part where the weight is spread over processes: each has a part of it. Older run
    folders have running means of what predictions lacked, with nothing left to subtract.
    """
    if "references" in state:
        return {index: one for index, one in state["references"].items() if "truth" in one}
    return {index: {"truth": lack, "inputs": None, "error": None} for index, lack in state["lacks"].items()}
