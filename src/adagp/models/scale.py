"""Fitting a network's layers to the image channels and to a width factor, whatever its architecture.

Every channel count of a network is multiplied by the same factor. As long as all of them stay whole numbers,
sums of channels scale as their terms do, so layers that add, concatenate or flatten still fit each other and
nothing needs to be known about how the network joins them.
"""

from math import gcd

import torch
from torch import nn

from adagp.errors import OptionError


def scale_channels(model: nn.Module, name: str, channels: int, width: float) -> nn.Module:
    """Give `model` `channels` input channels and `width` times its hidden channels, in place.

    It must be on the meta device. The first convolution reads the image, the last linear layer gives the
    class scores; those two ends are not scaled. A width that would leave a fraction of a channel is refused.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]
    first = next(layer for layer in layers if isinstance(layer, nn.Conv2d))
    last = [layer for layer in layers if isinstance(layer, nn.Linear)][-1]
    _refuse_fractions(name, width, gcd(*(count for layer in layers for count in _hidden(layer, first, last))))
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            _scale_convolution(layer, width, channels if layer is first else round(layer.in_channels * width))
        elif isinstance(layer, nn.BatchNorm2d):
            _scale_norm(layer, round(layer.num_features * width))
        else:
            outputs = layer.out_features if layer is last else round(layer.out_features * width)
            _scale_linear(layer, round(layer.in_features * width), outputs)
    return model


def _hidden(layer: nn.Module, first: nn.Module, last: nn.Module) -> list[int]:
    """Return the channel counts of a layer that scale."""
    if isinstance(layer, nn.Conv2d):
        return [layer.out_channels] if layer is first else [layer.in_channels, layer.out_channels]
    if isinstance(layer, nn.Linear):
        return [layer.in_features] if layer is last else [layer.in_features, layer.out_features]
    return []


def _refuse_fractions(name: str, width: float, unit: int) -> None:
    whole = round(width * unit)
    if whole < 1 or abs(width * unit - whole) > 1e-6:
        below = max(1, int(width * unit))
        raise OptionError(
            f"width {width:g} leaves fractions of channels in {name}; choose a multiple of 1/{unit}, "
            f"such as {below / unit:g} or {(below + 1) / unit:g}."
        )


def _scale_convolution(layer: nn.Conv2d, width: float, inputs: int) -> None:
    if layer.groups > 1:  # depthwise, as all convolutions with groups are in our networks
        layer.groups = inputs
    layer.in_channels, layer.out_channels = inputs, round(layer.out_channels * width)
    layer.weight = _parameter(layer.out_channels, inputs // layer.groups, *layer.kernel_size)
    if layer.bias is not None:
        layer.bias = _parameter(layer.out_channels)


def _scale_norm(layer: nn.BatchNorm2d, features: int) -> None:
    layer.num_features = features
    layer.weight, layer.bias = _parameter(features), _parameter(features)
    layer.running_mean, layer.running_var = (torch.empty(features, device="meta") for _ in range(2))


def _scale_linear(layer: nn.Linear, inputs: int, outputs: int) -> None:
    layer.in_features, layer.out_features = inputs, outputs
    layer.weight, layer.bias = _parameter(outputs, inputs), _parameter(outputs)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device="meta"))
