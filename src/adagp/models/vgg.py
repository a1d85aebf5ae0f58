"""VGG from torchvision, plain and with batch norm (`_bn`)."""

from torch import nn

from adagp.models.scale import scale_channels
from adagp.models.stems import PUBLISHED, halvings
from adagp.models.vision import load_torchvision


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
