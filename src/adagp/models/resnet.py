"""ResNet from torchvision, and the small CIFAR kind, which torchvision does not have, from its blocks."""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import pad

from adagp.models.scale import scale_channels
from adagp.models.stems import shrink_stem
from adagp.models.vision import load_torchvision


def resnet(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the published network, its stem made for the image size (`shrink_stem`)."""
    model: nn.Module = getattr(load_torchvision("torchvision.models"), name)(num_classes=classes)
    shrink_stem(model, "conv1", "maxpool", image)
    return scale_channels(model, name, image[0], width)


def cifar_resnet(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the CIFAR network of He et al. (2015, section 4.2) with as many layers as `name` says.

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
    """Every second pixel each way, and as many channels again of zeros, half before and half after."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, 2C, H/2, W/2) for (N, C, H, W), odd sizes rounded up."""
        channels = inputs.shape[1]
        before = channels // 2
        return pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, before, channels - before))
