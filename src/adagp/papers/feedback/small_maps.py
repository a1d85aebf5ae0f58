"""The weight gradient of a convolution of a few samples on small maps, as one product."""

from typing import Any

import torch.nn.functional as F
from torch import Size, Tensor

from adagp.layers.sites import Site
from adagp.sources.support.local import padded

SMALL = 64
"""Positions of an output up to which the product is quicker than a convolution's own code, on a CPU."""


def is_small(site: Site, inputs: Tensor, outputs: Size) -> bool:
    """Tell whether `gradient_of_patches` is made for a layer with `inputs` (channels last in memory) and such `outputs`."""
    module: Any = site.module
    planar = site.rule.kind != "linear" and site.weight.dim() == 4 and not module.transposed and module.groups == 1
    return planar and outputs[2:].numel() <= SMALL and inputs.device.type == "cpu"


def gradient_of_patches(site: Site, inputs: Tensor, output_gradient: Tensor) -> Tensor:
    """Return the weight's gradient: output gradients times all patches of the inputs, written out one below the other."""
    module: Any = site.module
    inputs, geometry = padded(module, inputs.to(site.weight.dtype))
    (down, across), (rows, columns) = geometry.padding, output_gradient.shape[2:]
    maps = F.pad(inputs.movedim(1, -1), (0, 0, across, across, down, down)).contiguous()
    samples, _, width, channels = maps.shape
    row, sample = width * channels, maps[0].numel()
    steps = [step * size for step, size in zip(geometry.stride, (row, channels), strict=True)]
    taps = [step * size for step, size in zip(geometry.dilation, (row, channels), strict=True)]
    patches = maps.as_strided((samples, rows, columns, *module.kernel_size, channels), (sample, *steps, *taps, 1))
    gradients = output_gradient.to(site.weight.dtype).movedim(1, 0).flatten(1)
    product = gradients @ patches.reshape(gradients.shape[1], -1)
    return product.view(-1, *module.kernel_size, channels).movedim(-1, 1)
