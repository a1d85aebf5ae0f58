"""The small networks that no library has: for the embedded digits, of gradient approximation, for comparisons."""

from collections import OrderedDict

from torch import nn

from adagp.models.scale import scale_channels

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

    `six_conv_vgg` has 16, 32 and 64 channels, `eight_conv_vgg` 32, 64, 128 and 256. The linear layer reads all that is
    left of a 32x32 image, 1024 numbers; larger images are averaged down to that.
    """
    pairs, most = ((16, 32, 64), 4) if name == "six_conv_vgg" else ((32, 64, 128, 256), 2)
    layers: Layers = {}
    inputs = image[0]
    for place, channels in enumerate(pairs, 1):
        layers |= _convolution(2 * place - 1, inputs, channels, 3) | _convolution(2 * place, channels, channels, 3)
        layers[f"pool{place}"] = nn.MaxPool2d(2, ceil_mode=True)
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
    """Return the layers from a feature map of `size` to class scores; above `most` it is averaged down."""
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
