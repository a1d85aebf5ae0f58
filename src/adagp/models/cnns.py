"""CNNs for images: adagp's own small ones, and the published families from torchvision and timm, at any width and image size.

Published networks halve the image early, to save work on 224x224 pixels and more; of 32x32 pixels nothing would be left for the
later layers. So the stem halves small images less often, as is usual for CIFAR: not at all below 64 pixels, once below 128, and
as published above.
"""

from collections import OrderedDict
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from adagp.errors import OptionError
from adagp.models.vision import load_timm, load_torchvision


def scale_channels(model: nn.Module, name: str, channels: int, width: float) -> nn.Module:
    """Give `model` `channels` input channels and `width` times its hidden channels, in place.

    As long as all channel counts stay whole numbers, sums of channels scale as their terms do. So layers that add, concatenate
    or flatten still fit each other, however the network joins them. The model must be on the meta device. The image channels of
    the first convolution and the class scores of the last linear layer are not scaled. A width that would leave a fraction of a
    channel is rejected.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]
    first = next(layer for layer in layers if isinstance(layer, nn.Conv2d))
    last = [layer for layer in layers if isinstance(layer, nn.Linear)][-1]
    _check_whole_channels(name, width, gcd(*(count for layer in layers for count in _hidden(layer, first, last))))
    for layer in layers:
        _scale(layer, width, channels, first, last)
    return model


def _scale(layer: nn.Module, width: float, channels: int, first: nn.Module, last: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        _scale_convolution(layer, width, channels if layer is first else round(layer.in_channels * width))
    elif isinstance(layer, nn.BatchNorm2d):
        _scale_norm(layer, round(layer.num_features * width))
    elif isinstance(layer, nn.Linear):
        outputs = layer.out_features if layer is last else round(layer.out_features * width)
        _scale_linear(layer, round(layer.in_features * width), outputs)


def _hidden(layer: nn.Module, first: nn.Module, last: nn.Module) -> list[int]:
    """Return the channel counts of a layer that scale."""
    if isinstance(layer, nn.Conv2d):
        return [layer.out_channels] if layer is first else [layer.in_channels, layer.out_channels]
    if isinstance(layer, nn.Linear):
        return [layer.in_features] if layer is last else [layer.in_features, layer.out_features]
    return []


def _check_whole_channels(name: str, width: float, unit: int) -> None:
    whole = round(width * unit)
    if whole < 1 or abs(width * unit - whole) > 1e-6:
        below = max(1, int(width * unit))
        raise OptionError(
            f"width {width:g} leaves fractions of channels in {name}; choose a multiple of 1/{unit}, "
            f"such as {below / unit:g} or {(below + 1) / unit:g}."
        )


def _scale_convolution(layer: nn.Conv2d, width: float, inputs: int) -> None:
    if layer.groups > 1:  # depthwise: these networks have no other convolutions with groups
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


PUBLISHED = 2


def halvings(image: tuple[int, int, int]) -> int:
    """Return how often the stem may halve an image: 0, 1, or 2 for the published stem."""
    smaller = min(image[1:])
    return 0 if smaller < 64 else 1 if smaller < 128 else PUBLISHED


def shrink_stem(owner: nn.Module, convolution: str, pooling: str, image: tuple[int, int, int]) -> None:
    """Fit a stem of a 7x7 convolution and a pooling, both of stride 2, to small images, in place.

    The convolution becomes 3x3 of stride 1; below 64 pixels there is no pooling. `owner` has both by name.
    """
    published = getattr(owner, convolution)
    if halvings(image) < PUBLISHED:
        small = nn.Conv2d(published.in_channels, published.out_channels, 3, padding=1, bias=False)
        setattr(owner, convolution, small)
    if halvings(image) == 0:
        setattr(owner, pooling, nn.Identity())


def keep_size(stem: nn.Module) -> None:
    """Make all convolutions and poolings of `stem` keep the image size, in place: stride 1 and full padding."""
    for layer in stem.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)
            layer.padding = tuple(length // 2 for length in layer.kernel_size)
        elif isinstance(layer, nn.MaxPool2d):
            set_pool_stride(layer, 1)


def set_pool_stride(layer: nn.MaxPool2d, stride: int) -> None:
    """Give a 3x3 pooling full padding and this stride."""
    layer.stride, layer.padding = stride, 1


Layers = dict[str, nn.Module]


def digits_cnn(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return 3x3 convolutions of 16, 32 and 32 channels, the last two at half the size, and a linear layer.

    Images larger than 8x8 are averaged down before the linear layer.
    """
    layers = {
        **_convolution(1, image[0], 16, 3),
        **_convolution(2, 16, 32, 3, stride=2),
        **_convolution(3, 32, 32, 3),
        **_classifier(32, _halved(image[1:], 1), 4, (), classes),
    }
    return scale_channels(nn.Sequential(OrderedDict(layers)), name, image[0], width)


def two_layer_cnn(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the two-layer CNN of Wang and Nelaturu (2019), with batch norm as they have it.

    They give no sizes; these are those of TensorFlow 1's CIFAR-10 tutorial network, which fits their
    description: two 5x5 convolutions of 64 channels, each with a 3x3 max pool of stride 2, then linear layers
    of 384, 192 and `classes`. Images larger than 32x32 are averaged down before the linear layers.
    """
    layers = {
        **_convolution(1, image[0], 64, 5),
        "pool1": nn.MaxPool2d(3, stride=2, padding=1),
        **_convolution(2, 64, 64, 5),
        "pool2": nn.MaxPool2d(3, stride=2, padding=1),
        **_classifier(64, _halved(image[1:], 2), 8, (384, 192), classes),
    }
    return scale_channels(nn.Sequential(OrderedDict(layers)), name, image[0], width)


def small_vgg(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return pairs of 3x3 convolutions with batch norm, each pair with a 2x2 max pool, and a linear layer.

    `six_conv_vgg` has 16, 32 and 64 channels, `eight_conv_vgg` 32, 64, 128 and 256. The linear layer reads the whole feature
    map of a 32x32 image, 1024 numbers; larger images are averaged down to that. In `six_conv_vgg_gap` it reads the mean of each
    channel (global average pooling): with 16 times fewer inputs it tolerates the learning rates of large batches.
    """
    pairs, most = ((32, 64, 128, 256), 2) if name == "eight_conv_vgg" else ((16, 32, 64), 4)
    if name.endswith("_gap"):
        most = 1
    layers: Layers = {}
    inputs = image[0]
    for block, channels in enumerate(pairs, 1):
        layers |= _convolution(2 * block - 1, inputs, channels, 3) | _convolution(2 * block, channels, channels, 3)
        layers[f"pool{block}"] = nn.MaxPool2d(2, ceil_mode=True)
        inputs = channels
    layers |= _classifier(inputs, _halved(image[1:], len(pairs)), most, (), classes)
    return scale_channels(nn.Sequential(OrderedDict(layers)), name, image[0], width)


def _convolution(number: int, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Layers:
    return {
        f"conv{number}": nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        f"bn{number}": nn.BatchNorm2d(outputs),
        f"relu{number}": nn.ReLU(inplace=True),
    }


def _classifier(channels: int, size: tuple[int, ...], most: int, hidden: tuple[int, ...], classes: int) -> Layers:
    """Return the layers from a feature map of `size` to class scores; sides longer than `most` are averaged down to it."""
    height, width = (min(length, most) for length in size)
    layers: Layers = {} if (height, width) == size else {"avgpool": nn.AdaptiveAvgPool2d((height, width))}
    layers["flatten"] = nn.Flatten()
    features = channels * height * width
    for number, neurons in enumerate(hidden, 1):
        layers |= {f"fc{number}": nn.Linear(features, neurons), f"fc{number}_relu": nn.ReLU(inplace=True)}
        features = neurons
    return {**layers, "fc": nn.Linear(features, classes)}


def _halved(size: tuple[int, ...], times: int) -> tuple[int, ...]:
    """Return the size after `times` layers of stride 2 that round up."""
    return tuple(-(-length // 2**times) for length in size)


def resnet(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network, its stem made for the image size (`shrink_stem`)."""
    model: nn.Module = getattr(load_torchvision("torchvision.models"), name)(num_classes=classes)
    shrink_stem(model, "conv1", "maxpool", image)
    return scale_channels(model, name, image[0], width)


def cifar_resnet(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the CIFAR network of He et al. (2015, section 4.2) with the number of layers in `name`.

    Three stages of 16, 32 and 64 channels, each of (depth - 2) / 6 blocks of two 3x3 convolutions; shortcuts
    have no parameters (their option A).
    """
    blocks = (int(name.removeprefix("resnet")) - 2) // 6
    block = load_torchvision("torchvision.models.resnet").BasicBlock

    def stage(channels: int, first: nn.Module) -> nn.Module:
        return nn.Sequential(first, *(block(channels, channels) for _ in range(blocks - 1)))

    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(image[0], 16, 3, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(16),
        "relu": nn.ReLU(inplace=True),
        "layer1": stage(16, block(16, 16)),
        "layer2": stage(32, block(16, 32, 2, HalvingShortcut())),
        "layer3": stage(64, block(32, 64, 2, HalvingShortcut())),
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(64, classes),
    }
    return scale_channels(nn.Sequential(OrderedDict(layers)), name, image[0], width)


class HalvingShortcut(nn.Module):
    """Every second pixel in each direction, with the channels doubled by channels of zeros, half before and half after."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, 2C, H/2, W/2) for (N, C, H, W), odd sizes rounded up."""
        channels = inputs.shape[1]
        before = channels // 2
        return pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, before, channels - before))


def vgg(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network, or for images below 128 pixels its convolutions with one linear layer.

    The published classifier of three linear layers reads a 7x7 map; of a 32x32 image one pixel is left, so
    the mean of the map goes straight to the class scores, as is usual for CIFAR.
    """
    model: nn.Module = getattr(load_torchvision("torchvision.models"), name)(num_classes=classes)
    if halvings(image) < PUBLISHED:
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Linear(512, classes)
    return scale_channels(model, name, image[0], width)


def densenet(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network, its stem made for the image size (`shrink_stem`)."""
    model: Any = getattr(load_torchvision("torchvision.models"), name)(num_classes=classes)
    shrink_stem(model.features, "conv0", "pool0", image)
    return scale_channels(model, name, image[0], width)


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


def inception_v3(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network without auxiliary head; the stem keeps small images as large as they are.

    Images of 64 to 127 pixels are halved once, by the stem's second pooling.
    """
    model: Any = load_torchvision("torchvision.models").inception_v3(
        num_classes=classes, aux_logits=False, init_weights=True
    )
    stem_halvings = halvings(image)
    if stem_halvings < PUBLISHED:
        stem = (model.Conv2d_1a_3x3, model.Conv2d_2a_3x3, model.Conv2d_2b_3x3, model.maxpool1, model.Conv2d_4a_3x3)
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
