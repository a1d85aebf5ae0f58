"""Two products that feedback spends its time in, faster on a CPU than the library's own for its shapes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from adagp.layers.sites import Site
from adagp.sources.local import padded

BLOCK_ROWS = 16
"""Long rows that are summed at a time."""
LONG_ONE_THREAD, LONG_THREADS = 2048, 8192
"""Numbers from which a row is long, for one thread and for several (measured): sharing the work has a cost, too."""
IM2COL_POSITIONS = 64
"""Positions of an output up to which im2col is faster than a convolution's own backward, on a CPU."""


def weighted_sums(weights: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `weights @ rows`, in `out` if it is given.

    Maps have sizes that are powers of two, so a hundred of them begin in the same set of a CPU's cache, which holds about
    eight lines: summing long rows a few at a time takes half the time.
    """
    threads = torch.get_num_threads()
    long = rows.shape[1] >= (LONG_ONE_THREAD if threads == 1 else LONG_THREADS)
    if len(rows) <= BLOCK_ROWS or not long or rows.device.type != "cpu":
        return torch.mm(weights, rows, out=out)
    if threads > 1 and rows.shape[1] % threads == 0:
        sums = _sums_by_thread(weights, rows, threads)
        return sums if out is None else out.copy_(sums)
    sums = torch.mm(weights[:, :BLOCK_ROWS], rows[:BLOCK_ROWS], out=out)
    for block in _later_blocks(rows):
        sums.addmm_(weights[:, block], rows[block])
    return sums


def _sums_by_thread(weights: Tensor, rows: Tensor, threads: int) -> Tensor:
    """Return the product, each thread with its own columns: sharing every block, two threads are hardly faster than one."""
    parts = rows.unflatten(1, (threads, -1)).transpose(0, 1)
    weights = weights.expand(threads, -1, -1)
    sums = torch.bmm(weights[..., :BLOCK_ROWS], parts[:, :BLOCK_ROWS])
    for block in _later_blocks(rows):
        sums.baddbmm_(weights[..., block], parts[:, block])
    return sums.transpose(0, 1).flatten(1)


def _later_blocks(rows: Tensor) -> list[slice]:
    return [slice(first, first + BLOCK_ROWS) for first in range(BLOCK_ROWS, len(rows), BLOCK_ROWS)]


def suits_im2col(site: Site, inputs: Tensor, outputs: Size) -> bool:
    """Return whether `im2col_weight_gradient` takes a layer with `inputs` (channels last in memory) and such `outputs`."""
    module: Any = site.module
    planar = site.rule.kind != "linear" and site.weight.dim() == 4 and not module.transposed and module.groups == 1
    return planar and outputs[2:].numel() <= IM2COL_POSITIONS and inputs.device.type == "cpu"


def im2col_weight_gradient(site: Site, inputs: Tensor, output_gradient: Tensor) -> Tensor:
    """Return a convolution's weight gradient as one product: output gradients times all patches of the inputs."""
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
