"""What autograd is to compute in a batch: nothing, the loss alone, or all but what comes from elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def only_needed_gradients(idle: Sequence[nn.Parameter], *, backward: bool, loss: bool) -> Iterator[None]:
    """Let autograd compute what the batch needs.

    With `backward` there is a backward pass, in which `idle` parameters get no gradient; autograd then stops below the
    lowest parameter that needs one. Without it autograd is off, but for the `loss` where that is to be differentiated: the
    hooks switch it off inside the model.
    """
    if not backward:
        with torch.set_grad_enabled(loss):
            yield
        return
    for parameter in idle:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in idle:
            parameter.requires_grad_(True)
