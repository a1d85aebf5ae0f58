"""Giving a network on the meta device its memory and its first weights."""

import torch
from torch import nn


def materialise(model: nn.Module) -> nn.Module:
    """Move `model` from the meta device to the default device with fresh weights, in place.

    All our models start alike: convolutions with He's normal distribution over their outputs, as
    torchvision's ResNet and VGG do, everything else as torch does by default. With "meta" as the default
    device the model stays as it is.
    """
    device = torch.get_default_device()
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d | nn.Linear):
            layer.reset_parameters()
    return model
