"""Giving a network on the meta device its memory and its first weights."""

from types import MethodType

import torch
from torch import nn

from adagp.errors import ModelError


class ZeroConv2d(nn.Conv2d):
    """A convolution whose weight starts at zero."""

    def reset_parameters(self) -> None:
        """Set weight and bias to zero."""
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


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
        if isinstance(layer, nn.Conv2d) and not isinstance(layer, ZeroConv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(reset := getattr(layer, "reset_parameters", None), MethodType):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise ModelError(
                f"{type(layer).__name__} has parameters of its own but no reset_parameters(), by which layers of a model "
                "in the table of models get their first values."
            )
    return model
