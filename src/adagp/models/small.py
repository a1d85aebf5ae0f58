"""The small networks that no library has: for the embedded digits, and of gradient approximation."""

from torch import nn

from adagp.models.width import scaled


def digits_cnn(classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return 3x3 convolutions of 16, 32 and 32 channels, the last two at half the size, and a linear layer.

    Images larger than 8x8 are averaged down before the linear layer.
    """
    first, second = scaled(16, width), scaled(32, width)
    return nn.Sequential(
        *_convolution(image[0], first, 3),
        *_convolution(first, second, 3, stride=2),
        *_convolution(second, second, 3),
        *_classifier(second, _halved(image[1:], 1), 4, (), classes),
    )


def two_layer_cnn(classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the two-layer CNN of Wang and Nelaturu (2019), with batch norm as they have it.

    They give no sizes; these are those of TensorFlow 1's CIFAR-10 tutorial network, which fits their
    description: two 5x5 convolutions of 64 channels, each with a 3x3 max pool of stride 2, then linear layers
    of 384, 192 and `classes`. Images larger than 32x32 are averaged down before the linear layers.
    """
    channels = scaled(64, width)
    return nn.Sequential(
        *_convolution(image[0], channels, 5),
        nn.MaxPool2d(3, stride=2, padding=1),
        *_convolution(channels, channels, 5),
        nn.MaxPool2d(3, stride=2, padding=1),
        *_classifier(channels, _halved(image[1:], 2), 8, (scaled(384, width), scaled(192, width)), classes),
    )


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def _classifier(
    channels: int, size: tuple[int, ...], most: int, hidden: tuple[int, ...], classes: int
) -> list[nn.Module]:
    """Return the layers from a feature map of `size` to class scores; above `most` it is averaged down."""
    height, width = (min(length, most) for length in size)
    layers: list[nn.Module] = [] if (height, width) == size else [nn.AdaptiveAvgPool2d((height, width))]
    layers.append(nn.Flatten())
    features = channels * height * width
    for neurons in hidden:
        layers += [nn.Linear(features, neurons), nn.ReLU(inplace=True)]
        features = neurons
    return [*layers, nn.Linear(features, classes)]


def _halved(size: tuple[int, ...], times: int) -> tuple[int, ...]:
    """Return the size after `times` layers of stride 2 that round up."""
    return tuple(-(-length // 2**times) for length in size)
