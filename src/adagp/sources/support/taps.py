"""Getting at the gradient of a tensor in the middle of a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_passing_by = 0


@contextmanager
def nobody_receives() -> Iterator[None]:
    """Let gradients that are taken inside the context, which are none of training, pass by."""
    global _passing_by
    _passing_by += 1
    try:
        yield
    finally:
        _passing_by -= 1


@contextmanager
def all_receive() -> Iterator[None]:
    """Let the gradients that are taken inside the context be those of training, wherever it is."""
    global _passing_by
    before, _passing_by = _passing_by, 0
    try:
        yield
    finally:
        _passing_by = before


def on_gradient(output: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
    """Call `receive` with the loss's gradient at `output` in the backward pass; return the tensor to continue with.

    Where `output` needs no gradient, because nothing below it does, it is made to begin a graph of its own. That one is a
    copy: the layers above may change what they get in place, which is not allowed for the beginning of a graph.

    `receive` must not refer to `output`: a tensor that owns a hook that owns the tensor is never freed.
    """

    def hook(gradient: Tensor) -> None:
        if _passing_by:
            return
        with torch.autocast(gradient.device.type, enabled=False):  # a backward pass may run under it
            receive(gradient.detach())

    if output.requires_grad:
        output.register_hook(hook)
        return output
    if not torch.is_grad_enabled():
        return output
    leaf = output.detach().requires_grad_()
    leaf.register_hook(hook)
    return leaf.clone()
