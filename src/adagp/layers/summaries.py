"""Summaries of outputs: means over the batch, in one pass over an output or less, pooled to a small grid."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.layers.weights import CHANNELS_LAST

_LARGE = 3 * 2**20
"""Below this size of an output, in numbers, reading it again is faster than calling its layer again: measured, two threads."""
_SMALL = 2**17
"""Above this size of a mean, in numbers, its memory is not kept."""
_AFFINE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def batch_mean(output: Tensor) -> Tensor:
    """Return the mean over the first axis, in single precision, in the memory order of one sample of `output`.

    The output is reduced as a matrix whose rows are samples in memory order: one pass at the speed of memory, whatever the
    order of the axes. torch's own mean over the first axis is twenty times as slow for channels-last tensors.
    """
    if _dense(output):
        shape, strides = output.shape[1:], output.stride()[1:]
        flat = output.as_strided((len(output), shape.numel()), (shape.numel(), 1))
        return _mean_of_rows(flat).as_strided(shape, strides)
    order = sorted(range(1, output.dim()), key=output.stride, reverse=True)
    laid = output.permute(0, *order)
    mean = _mean_of_rows(laid.reshape(len(output), -1)).view(laid.shape[1:])
    return mean.permute([order.index(axis) for axis in range(1, output.dim())])


def _dense(output: Tensor) -> bool:
    """Return whether the samples of `output` lie one after the other, without gaps."""
    form = CHANNELS_LAST.get(output.dim(), torch.contiguous_format)
    return output.is_contiguous() or output.is_contiguous(memory_format=form)


def _mean_of_rows(matrix: Tensor) -> Tensor:
    """Return the mean of the rows in single precision.

    A product with a vector reads row after row, at 1.4 times the speed of a sum over the first axis, which reads by columns.
    """
    if not _plain(matrix) or torch.compiler.is_compiling():
        return matrix.mean(0, dtype=torch.float32)
    return torch.mv(matrix.T, _equal_shares(len(matrix)))


def _plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


@lru_cache(maxsize=64)
def _equal_shares(count: int) -> Tensor:
    return torch.full((count,), 1 / max(1, count))


class KeptMean:
    """Takes batch means of one layer's outputs, rearranged by `view`, always into the same memory.

    The view is prepared once for all outputs of the same shape and memory order, so taking a mean is a single operator. A new
    tensor for each mean would be slow: an allocation that outlives its layer during the forward pass keeps the next layers from
    reusing the same, still cached memory.
    """

    def __init__(self, view: Callable[[Tensor], Tensor] | None, rows: int, dimensions: int) -> None:
        """Take means of outputs with at least `dimensions` axes whose view has `rows` rows; without a view, take none."""
        self._view = view
        self._rows, self._dimensions = rows, dimensions
        self._known: tuple[object, ...] = ()
        self._seen: Tensor | None = None

    def take(self, output: Tensor) -> Tensor | None:
        """Return the mean, which the next call overwrites; None if this class cannot take it."""
        if torch.compiler.is_compiling():
            return None
        known = output.shape, output.stride(), output.dtype, output.device
        if known != self._known:
            self._known, self._seen = known, None
            if self._view is not None:
                self._prepare(self._view, output)
        if self._seen is not None:
            samples = output.detach().as_strided(self._matrix, self._strides)
            torch.mv(samples, _equal_shares(self._matrix[1]), out=self._flat)
        return self._seen

    def _prepare(self, view: Callable[[Tensor], Tensor], output: Tensor) -> None:
        numbers = output.shape[1:].numel()
        if output.dim() < self._dimensions or numbers > _SMALL or not _plain(output) or not _dense(output):
            return
        self._flat = torch.empty(numbers, dtype=torch.float32)
        self._matrix, self._strides = (numbers, len(output)), (1, numbers)
        seen = view(self._flat.as_strided(output.shape[1:], output.stride()[1:]))
        copied = seen.untyped_storage().data_ptr() != self._flat.untyped_storage().data_ptr()
        if not copied and len(seen) == self._rows:
            self._seen = seen


def stand_in(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Return a tensor with the same batch mean as `output`: the layer's output for the mean input, or `output` itself.

    The mean output of an affine layer is its output for the mean input. If the input is far smaller than the output (the first
    convolution of three colours, the expansions of MobileNet), this saves nearly all of the reading.
    """
    size = output.numel()
    if size < _LARGE or type(module) not in _AFFINE or len(inputs) != 1 or 4 * inputs[0].numel() > size:
        return output
    (values,) = inputs
    batched = values.dim() == output.dim() >= module.weight.dim()  # type: ignore[operator]  # a parameter, as in all four
    changed = len(module._forward_hooks) > 1  # a hook other than adagp's may have replaced the output
    if changed or not batched or not (_plain(values) and _plain(output)) or torch.compiler.is_compiling():
        return output
    with torch.no_grad():
        mean_output: Tensor = module.forward(batch_mean(values.detach())[None])
    return mean_output


def pool_average(samples: Tensor, grid: int) -> Tensor:
    """Average samples `(rows, height, width)` down (or repeat them up) to `(rows, 1, grid, grid)`.

    Each cell is a sum over the picture with constant weights: one matrix product for all rows, in either memory order.
    """
    if torch.compiler.is_compiling():  # torch's compiler makes one loop of it, and would trace how the matrix is made
        return pool_average_directly(samples, grid)
    rows, height, width = samples.shape
    kind = samples.device.type
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return pool_average(samples, grid)
    cells = _averages(height, width, grid, samples.device)
    return torch.mm(samples.reshape(rows, -1), cells).view(rows, 1, grid, grid)


def pool_maximum(samples: Tensor, grid: int) -> Tensor:
    """Take the maximum of samples `(rows, height, width)` in each cell of `(rows, 1, grid, grid)`."""
    return _pool(samples, grid, F.adaptive_max_pool1d, F.adaptive_max_pool2d)


def pool_average_directly(samples: Tensor, grid: int) -> Tensor:
    """Do what `pool_average` does with torch's own pooling, which is slower outside a compiled model."""
    return _pool(samples, grid, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d)


def _pool(
    samples: Tensor,
    grid: int,
    along_line: Callable[[Tensor, int], Tensor],
    over_plane: Callable[[Tensor, tuple[int, int]], Tensor],
) -> Tensor:
    rows, height, width = samples.shape
    if height * width == 1:
        return samples.repeat(1, grid, grid).unsqueeze(1)  # always a copy: summaries share no memory with the output
    if height == 1:  # a sequence fills the grid line by line: grid * grid sections of it instead of grid
        return along_line(samples, grid * grid).view(rows, 1, grid, grid)
    return over_plane(samples.unsqueeze(1), (grid, grid))


@lru_cache(maxsize=256)
def _averages(height: int, width: int, grid: int, device: torch.device) -> Tensor:
    """Return `(height * width, grid * grid)`: the weight of each pixel in the average of each cell."""
    if height == 1:  # a sequence fills the grid line by line, as above
        return F.adaptive_avg_pool1d(torch.eye(width, dtype=torch.float32, device=device), grid * grid)
    down, across = (
        F.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float32, device=device), grid) for size in (height, width)
    )
    return torch.kron(down, across)
