"""In which order the numbers of a weight lie in memory, and how to use them there.

The weight of a convolution is `(rows, channels, ...taps)`. In the channels-last format, which is faster on most CPUs,
its memory has the channels of a tap side by side: `(rows, ...taps, channels)`. A row of such a weight is the logical row
transposed. `taps` below is the number of taps of a weight that lies like this, and 1 for every other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def taps_of(weight: Tensor) -> int:
    """Return the taps of a weight whose rows are transposed in memory; 1 for one that lies in its logical order."""
    form = CHANNELS_LAST.get(weight.dim())
    if form is None or weight.is_contiguous() or not weight.is_contiguous(memory_format=form):
        return 1
    return weight.shape[2:].numel()


def as_rows(tensor: Tensor, taps: int) -> Tensor:
    """Return a tensor in the shape of a weight as `(rows, width)`: a view where it lies as `taps` says, else a copy."""
    if taps > 1:
        tensor = tensor.movedim(1, -1)
    return tensor.reshape(len(tensor), tensor.shape[1:].numel())


def as_weight(rows: Tensor, like: Tensor, taps: int) -> Tensor:
    """Return `(rows, width)` in the memory order of `taps` as a tensor in the shape of the weight `like`, without a copy."""
    if taps == 1:
        return rows.view(like.shape)
    return rows.view(len(like), *like.shape[2:], like.shape[1]).movedim(-1, 1)


def in_order(rows: Tensor, taps: int) -> Tensor:
    """Return the rows of a matrix, one for each number of a weight's logical row, in the order of the weight's memory."""
    return rows if taps == 1 else rows.unflatten(0, (-1, taps)).transpose(0, 1).flatten(0, 1)


def out_of_order(rows: Tensor, taps: int) -> Tensor:
    """Return the rows of a matrix that are in the order of a weight's memory in its logical order."""
    return rows if taps == 1 else rows.unflatten(0, (taps, -1)).transpose(0, 1).flatten(0, 1)


def exchanged(tensor: Tensor, groups: int) -> Tensor:
    """Return a weight `(inputs, outputs per group, ...)` as `(outputs, inputs per group, ...)`, or the other way round.

    A view of one group, else a copy.
    """
    parts: Tensor = tensor.unflatten(0, (groups, -1))
    return parts.transpose(1, 2).flatten(0, 1)


def gradient_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each tensor, in single precision.

    On a CPU as products with themselves, which read memory at twice the speed of torch's norm, and round less.
    """
    if any(one.device.type != "cpu" for one in gradients):
        return torch.stack(torch._foreach_norm(list(gradients), dtype=torch.float32))
    return torch.stack([square(one) for one in gradients]).sqrt_()


def square(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of a tensor's numbers."""
    dense = tensor.is_contiguous() or taps_of(tensor) > 1
    line = tensor.as_strided((tensor.numel(),), (1,)) if dense else tensor.reshape(-1)
    line = line.float()
    return torch.dot(line, line)
