"""DenseNet from torchvision."""

from typing import Any

from torch import nn

from adagp.models.scale import scale_channels
from adagp.models.stems import shrink_stem
from adagp.models.vision import load_torchvision


def densenet(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network, its stem made for the image size (`shrink_stem`)."""
    model: Any = getattr(load_torchvision("torchvision.models"), name)(num_classes=classes)
    shrink_stem(model.features, "conv0", "pool0", image)
    return scale_channels(model, name, image[0], width)
