"""Inception-V3 from torchvision, Inception-V4 from timm."""

from typing import Any

from torch import nn

from adagp.models.scale import scale_channels
from adagp.models.stems import PUBLISHED, halvings, keep_size, set_pool_stride
from adagp.models.vision import load_timm, load_torchvision


def inception_v3(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network without auxiliary head; the stem keeps small images as large as they are.

    Images of 64 to 127 pixels are halved once, by the stem's second pooling.
    """
    model: Any = load_torchvision("torchvision.models").inception_v3(
        num_classes=classes, aux_logits=False, init_weights=True
    )
    stem_halvings = halvings(image)
    if stem_halvings < PUBLISHED:
        stem = (
            model.Conv2d_1a_3x3,
            model.Conv2d_2a_3x3,
            model.Conv2d_2b_3x3,
            model.maxpool1,
            model.Conv2d_4a_3x3,
        )
        for layer in stem:
            keep_size(layer)
        set_pool_stride(model.maxpool2, 1 + stem_halvings)
    return scale_channels(model, name, image[0], width)


def inception_v4(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network; the stem keeps small images as large as they are.

    Images of 64 to 127 pixels are halved once, by the stem's last block.
    """
    model: Any = load_timm().create_model(name, num_classes=classes)
    stem_halvings = halvings(image)
    if stem_halvings < PUBLISHED:
        stem = model.features[:6]  # three convolutions and three mixed blocks
        keep_size(stem)
        if stem_halvings == 1:
            stem[5].conv.conv.stride = (2, 2)
            set_pool_stride(stem[5].maxpool, 2)
    return scale_channels(model, name, image[0], width)
