"""Scaling by the generic rule against the libraries' own width arguments."""

from typing import Any

import pytest
import torch
from torch import nn

from adagp.models import build_model
from adagp.models.cnns import HalvingShortcut
from adagp.models.vision import load_torchvision


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in model.state_dict().values()]


@pytest.mark.medium
@pytest.mark.parametrize("width", [0.25, 0.5, 2.0])
def test_densenet_scales_as_its_growth_rate_does(width: float) -> None:
    densenet: Any = load_torchvision("torchvision.models").DenseNet
    with torch.device("meta"):
        expected = densenet(round(32 * width), (6, 12, 24, 16), round(64 * width), num_classes=7)
        model = build_model("densenet121", classes=7, image=(3, 224, 224), width=width)
    assert shapes(model) == shapes(expected)


@pytest.mark.parametrize("width", [0.125, 0.5])
def test_vgg_scales_as_its_configuration_does(width: float) -> None:
    library: Any = load_torchvision("torchvision.models.vgg")
    configuration = [layer if layer == "M" else round(layer * width) for layer in library.cfgs["B"]]
    with torch.device("meta"):
        expected = library.make_layers(configuration, batch_norm=True)
        model: Any = build_model("vgg13_bn", classes=7, image=(3, 32, 32), width=width)
    assert shapes(model.features) == shapes(expected)


def test_mobilenet_scales_by_its_own_multiplier() -> None:
    library: Any = load_torchvision("torchvision.models")
    with torch.device("meta"):
        expected = library.MobileNetV2(num_classes=7, width_mult=0.5)
        model = build_model("mobilenet_v2", classes=7, image=(3, 224, 224), width=0.5)
    assert shapes(model) == shapes(expected)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["resnet50", "inception_v3", "inception_v4"])
def test_half_the_width_is_a_quarter_of_each_hidden_convolution(name: str) -> None:
    with torch.device("meta"):
        full, half = (build_model(name, classes=7, image=(3, 64, 64), width=width) for width in (1.0, 0.5))
    for (path, one), (_, other) in zip(full.named_modules(), half.named_modules(), strict=True):
        if isinstance(one, nn.Conv2d) and isinstance(other, nn.Conv2d) and one.in_channels != 3:
            assert one.weight.numel() == 4 * other.weight.numel(), path
            assert (one.stride, one.padding, one.kernel_size) == (
                other.stride,
                other.padding,
                other.kernel_size,
            )


@pytest.mark.parametrize("channels", [1, 4, 5])
def test_halving_shortcut(channels: int) -> None:
    inputs = torch.randn(2, channels, 5, 6)
    output = HalvingShortcut()(inputs)
    assert output.shape == (2, 2 * channels, 3, 3)
    before = channels // 2
    assert torch.equal(output[:, before : before + channels], inputs[:, :, ::2, ::2])
    assert not output[:, :before].any()
    assert not output[:, before + channels :].any()
