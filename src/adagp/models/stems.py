"""How the first layers of networks made for large images are changed for small ones.

Published networks halve the image early, to save work on 224x224 pixels and more; on 32x32 nothing would be
left for the later layers. Small images go through a stem with fewer halvings, as is usual for CIFAR: none
below 64 pixels, one below 128, and the published stem above.
"""

from torch import nn

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
    """Let no convolution or pooling of `stem` shrink the image: stride 1 and full padding, in place."""
    for layer in stem.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)
            layer.padding = tuple(length // 2 for length in layer.kernel_size)
        elif isinstance(layer, nn.MaxPool2d):
            set_pool_stride(layer, 1)


def set_pool_stride(layer: nn.MaxPool2d, stride: int) -> None:
    """Give a 3x3 pooling full padding and the stride."""
    layer.stride, layer.padding = stride, 1
