"""The gradients that a batch leaves for the user to look at, and the next batch drops."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.errors import UsageError

Mark = tuple[int, int]
"""Where a gradient lies, and how often it was changed: enough to know it again."""


class LeftGradients:
    """Knows the gradients of the last batch from others, which nobody may drop."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._left: list[Mark | None] = []

    def keep(self) -> None:
        """Take the gradients that there are as those of the last batch."""
        self._left = self._marks()

    def refuse_others(self) -> None:
        """Raise if there are gradients besides those of the last batch."""
        found = self._marks()
        if found != self._left and any(one is not None and one not in self._left for one in found):
            raise UsageError(
                "parameters still have gradients from before this batch. adagp cannot accumulate gradients across "
                "batches, as a GP batch has none to add to: accumulate inside one batch with "
                "batch.backward(loss, more=True), or call optimizer.zero_grad(set_to_none=True) first."
            )

    def _marks(self) -> list[Mark | None]:
        gradients = (
            parameter.grad
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        return [None if one is None else (_place(one), one._version) for one in gradients]


def _place(gradient: Tensor) -> int:
    # a sparse one has no memory of its own
    return gradient.data_ptr() if gradient.layout is torch.strided else id(gradient)
