"""MobileNet-V2 from torchvision."""

from typing import Any

from torch import nn

from adagp.models.scale import scale_channels
from adagp.models.stems import PUBLISHED, halvings
from adagp.models.vision import load_torchvision


def mobilenet_v2(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network; for small images the stem has stride 1.

    Below 64 pixels the second stage has stride 1 as well. `width` is the paper's own width multiplier:
    channels are rounded to multiples of 8, and the last layer is not narrowed.
    """
    library = load_torchvision("torchvision.models")
    model: Any = library.mobilenet_v2(num_classes=classes, width_mult=width)
    if halvings(image) < PUBLISHED:
        model.features[0][0].stride = (1, 1)
    if halvings(image) == 0:
        depthwise = model.features[2].conv[1][0]
        depthwise.stride = (1, 1)
    return scale_channels(model, name, image[0], 1.0)
