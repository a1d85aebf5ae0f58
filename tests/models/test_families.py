"""Every image model: its published size, and that narrow versions of it learn at all image sizes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from adagp.models import MODELS, build_model
from adagp.models.example import measure
from adagp.models.vision import load_torchvision
from adagp.papers.camel.reversible import ReversibleChain
from adagp.program.model_table import describe_models

pytestmark = pytest.mark.medium

AUXILIARY_HEAD = 3_326_696
"""Parameters of the auxiliary head of Inception v3, which torchvision's table counts and adagp leaves out."""
# Parameters at 1000 classes and, where stated, 10**9 multiply-accumulates of an image of the usual size.
# Source: torchvision's table of classification weights (its GFLOPS count a multiply-accumulate once).
TORCHVISION = {
    "resnet50": (25_557_032, 4.09),
    "resnet101": (44_549_160, 7.80),
    "resnet152": (60_192_808, 11.51),
    "vgg11": (132_863_336, 7.61),
    "vgg11_bn": (132_868_840, 7.61),
    "vgg13": (133_047_848, 11.31),
    "vgg13_bn": (133_053_736, 11.31),
    "vgg16": (138_357_544, 15.47),
    "vgg16_bn": (138_365_992, 15.47),
    "vgg19": (143_667_240, 19.63),
    "vgg19_bn": (143_678_248, 19.63),
    "densenet121": (7_978_856, 2.83),
    "densenet161": (28_681_000, 7.73),
    "densenet169": (14_149_480, 3.36),
    "densenet201": (20_013_928, 4.29),
    "mobilenet_v2": (3_504_872, 0.30),
    "inception_v3": (27_161_264 - AUXILIARY_HEAD, 5.71),
}
# Source: timm's model card of inception_v4.tf_in1k, 42.7 million parameters and 12.3 * 10**9
# multiply-accumulates; the last digits of the parameters are those of timm 1.0.
TIMM = {"inception_v4": (42_679_816, 12.3)}
PUBLISHED = TORCHVISION | TIMM
OUR_OWN = (
    "digits_cnn",
    "two_layer_cnn",
    "six_conv_vgg",
    "six_conv_vgg_gap",
    "eight_conv_vgg",
    "small_vit",
    "resnet14",
    "resnet20",
    "duplex",
)
ONE_OF_EACH_FAMILY = ("resnet50", "vgg13", "densenet121", "mobilenet_v2", "inception_v3", "inception_v4")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(name: str) -> None:
    (row,) = describe_models([name])
    parameters, gigamacs = PUBLISHED[name]
    assert row.parameters == parameters
    assert row.macs is not None
    assert row.macs / 1e9 == pytest.approx(gigamacs, abs=0.05)


def test_the_auxiliary_head_of_inception_v3_has_the_subtracted_size() -> None:
    head: nn.Module = load_torchvision("torchvision.models.inception").InceptionAux(768, 1000)
    assert sum(parameter.numel() for parameter in head.parameters()) == AUXILIARY_HEAD


def test_all_image_models_have_a_published_size_or_are_our_own() -> None:
    assert set(PUBLISHED) | set(OUR_OWN) == {name for name in MODELS if MODELS[name].task == "images"}


def conv_norm_parameters(kernels: Sequence[tuple[int, int]], norms: int) -> int:
    """Return the parameters of 3x3 convolutions (inputs, outputs) without bias, and of batch norms of `norms` channels."""
    return 9 * sum(inputs * outputs for inputs, outputs in kernels) + 2 * norms


def vgg_parameters(*widths: int) -> int:
    """Return the parameters of a VGG of two convolutions a width, for 10 classes."""
    kernels = [pair for before, width in pairwise((3, *widths)) for pair in ((before, width), (width, width))]
    return conv_norm_parameters(kernels, 2 * sum(widths)) + (16 * 64 + 1) * 10


def resnet_parameters(blocks: int) -> int:
    """Return the parameters of He et al.'s ResNet of 6 * blocks + 2 layers for CIFAR, without projections, for 10 classes."""
    kernels = [(3, 16)]
    for width in (16, 32, 64):
        kernels += [(kernels[-1][1], width), *[(width, width)] * (2 * blocks - 1)]
    return conv_norm_parameters(kernels, sum(outputs for _, outputs in kernels)) + (64 + 1) * 10


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet20", 269_722),  # He et al. 2015, table 6: 0.27 million
        ("resnet20", resnet_parameters(3)),
        ("resnet14", resnet_parameters(2)),
        ("resnet50", 23_520_842),
        ("vgg16_bn", 14_728_266),
        ("digits_cnn", 19_546),
        ("six_conv_vgg", vgg_parameters(16, 32, 64)),
        ("six_conv_vgg_gap", vgg_parameters(16, 32, 64) - 15 * 64 * 10),  # 64 inputs of the linear layer, not 1024
        ("small_vit", 4 * (4 * (128 + 1) * 128 + (128 + 1) * 512 + (512 + 1) * 128 + 4 * 128) + 49 * 128 + 256 + 1290),
        ("eight_conv_vgg", vgg_parameters(32, 64, 128, 256)),
    ],
)
def test_size_at_cifar(name: str, parameters: int) -> None:
    (row,) = describe_models([name], image=(3, 32, 32), classes=10)
    assert row.parameters == parameters


@pytest.mark.parametrize(
    ("name", "image"),
    [(name, (3, 32, 32)) for name in PUBLISHED] + [(name, (1, 64, 64)) for name in ONE_OF_EACH_FAMILY],
)
def test_a_narrow_model_learns(name: str, image: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = build_model(name, classes=5, image=image, width=0.125)
    scores = model(torch.randn(3, *image))
    assert scores.shape == (3, 5)
    loss: Any = nn.functional.cross_entropy(scores, torch.tensor([0, 1, 4]))
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.isfinite().all(), parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert weights[0].shape[1] == image[0]
    assert all(weight.grad is not None and weight.grad.any() for weight in weights)


@pytest.mark.parametrize("name", OUR_OWN)
@pytest.mark.parametrize("image", [(1, 8, 8), (3, 32, 32), (3, 33, 47)])
def test_our_own_learn(name: str, image: tuple[int, int, int]) -> None:
    model = build_model(name, classes=5, image=image, width=0.25)
    scores = model(torch.randn(3, *image))
    assert scores.shape == (3, 5)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def last_map(model: nn.Module, pixels: int) -> int:
    """Return the width of the last convolution's output."""
    maps: list[int] = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda _layer, _inputs, output: maps.append(output.shape[-1]))
    measure(model, torch.zeros(1, 3, pixels, pixels, device=next(model.parameters()).device))
    return maps[-1]


@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_features_left_of_an_image(name: str) -> None:
    """The map before the final mean is neither a single pixel (VGG's aside) nor needlessly large."""
    for pixels in (32, 64, 224):
        with torch.device("meta"):
            model = build_model(name, classes=10, image=(3, pixels, pixels))
        left = last_map(model, pixels)
        if name.startswith("vgg"):
            assert left == pixels // 16  # a last pooling follows
        else:
            assert 4 <= left <= 7


def test_every_layer_with_weights_is_initialised() -> None:
    """`materialise` initialises these kinds of layers; a network with another would start with garbage."""
    for name in MODELS:
        info = MODELS[name]
        if info.task != "images" or info.image is None:
            continue
        with torch.device("meta"):
            model = build_model(name, classes=10, image=info.image)
        for layer in model.modules():
            owned: list[torch.Tensor] = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
            if owned:
                initialised = isinstance(layer, nn.Conv2d | ReversibleChain) or hasattr(layer, "reset_parameters")
                assert initialised, (name, type(layer))
