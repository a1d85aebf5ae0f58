"""The size of a model: its parameters and the multiplications of a forward pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.layers.eval_mode import evaluation_mode


@dataclass(frozen=True)
class ModelSize:
    """Trainable numbers, and multiply-accumulates of convolutions and linear layers for one sample."""

    parameters: int
    macs: int


def measure(model: nn.Module, *inputs: Tensor) -> ModelSize:
    """Return the size of `model` for `inputs`, which hold one sample. Products of two activations do not count.

    A forward pass is run in evaluation mode; on the meta device nothing is computed.
    """
    macs = 0

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal macs
        weight = layer.weight
        assert isinstance(weight, Tensor)
        macs += output.numel() * weight[0].numel()  # weight[0]: what makes one output number

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with evaluation_mode(model), torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return ModelSize(sum(parameter.numel() for parameter in model.parameters()), macs)
