"""Weights in memory: the order of their numbers, and the shards of a DTensor that each process has (FSDP2's `fully_shard`).

The weight of a convolution is `(rows, channels, ...kernel)`. In the channels-last format, which is faster on most CPUs, the
channels of a kernel position are next to each other in memory: `(rows, ...kernel, channels)`. A row of such a weight is the
logical row transposed. `taps` below is the number of kernel positions of a weight in that format, and 1 for every other.

A sharded weight is cut along one axis over one dimension of its device mesh, and copied along the others: as FSDP2 does on a
mesh of one dimension, or of two (HSDP). The functions for sharded weights return ordinary tensors unchanged.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def kernel_taps(weight: Tensor) -> int:
    """Return the number of kernel positions of a channels-last weight, whose rows are transposed in memory; else 1."""
    form = CHANNELS_LAST.get(weight.dim())
    if form is None or weight.is_contiguous() or not weight.is_contiguous(memory_format=form):
        return 1
    return weight.shape[2:].numel()


def as_rows(tensor: Tensor, taps: int) -> Tensor:
    """Return a tensor in the shape of a weight as `(rows, width)`: a view if `taps` is its memory order, else a copy."""
    if taps > 1:
        tensor = tensor.movedim(1, -1)
    return tensor.reshape(len(tensor), tensor.shape[1:].numel())


def as_weight(rows: Tensor, like: Tensor, taps: int) -> Tensor:
    """Return `(rows, width)` in the memory order of `taps` as a tensor in the shape of the weight `like`, without a copy."""
    if taps == 1:
        return rows.view(like.shape)
    return rows.view(len(like), *like.shape[2:], like.shape[1]).movedim(-1, 1)


def to_memory_order(rows: Tensor, taps: int) -> Tensor:
    """Reorder the rows of a matrix, one for each number of a weight's row, from the logical order to the memory order."""
    return rows if taps == 1 else rows.unflatten(0, (-1, taps)).transpose(0, 1).flatten(0, 1)


def from_memory_order(rows: Tensor, taps: int) -> Tensor:
    """Reorder the rows of a matrix, one for each number of a weight's row, from the memory order to the logical order."""
    return rows if taps == 1 else rows.unflatten(0, (taps, -1)).transpose(0, 1).flatten(0, 1)


def swapped_channels(tensor: Tensor, groups: int) -> Tensor:
    """Return a weight `(inputs, outputs per group, ...)` as `(outputs, inputs per group, ...)`, or the other way round.

    A view of one group, else a copy.
    """
    parts: Tensor = tensor.unflatten(0, (groups, -1))
    return parts.transpose(1, 2).flatten(0, 1)


def gradient_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each tensor, in single precision.

    On a CPU they are computed as dot products, which read memory at twice the speed of torch's norm, and round less.
    """
    if any(gradient.device.type != "cpu" for gradient in gradients):
        return torch.stack(torch._foreach_norm(list(gradients), dtype=torch.float32))
    return torch.stack([square(gradient) for gradient in gradients]).sqrt_()


def square(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of a tensor's numbers."""
    dense = tensor.is_contiguous() or kernel_taps(tensor) > 1
    line = tensor.as_strided((tensor.numel(),), (1,)) if dense else tensor.reshape(-1)
    line = line.float()
    return torch.dot(line, line)


@dataclass(frozen=True)
class WeightShard:
    """The shard of a weight that this process has: `rows` of the axis along which the weight is cut.

    `group` has the processes with the shards of the weight; None if each process has the whole weight.
    """

    axis: int
    rows: slice
    group: dist.ProcessGroup | None


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor. This does not import its module, which is loaded if there is any DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def mesh_of(weight: Any) -> Any:
    """Return the device mesh of a sharded weight."""
    return weight.device_mesh


def is_sharded_once(weight: Any) -> bool:
    """Return whether a sharded weight is cut along one mesh dimension at most, which is the only supported way."""
    cuts = [placement for placement in weight.placements if not placement.is_replicate()]
    return len(cuts) <= 1 and all(type(placement).__name__ == "Shard" for placement in cuts)


def shard_of(weight: Any) -> WeightShard:
    """Return which shard of a weight this process has."""
    mesh = weight.device_mesh
    for dimension, placement in enumerate(weight.placements):
        if placement.is_shard():
            size = weight.shape[placement.dim]
            step = -(-size // mesh.size(dimension))
            first = min(mesh.get_local_rank(dimension) * step, size)
            return WeightShard(placement.dim, slice(first, min(first + step, size)), mesh.get_group(dimension))
    return WeightShard(0, slice(0, len(weight)), None)


def local(tensor: Any) -> Tensor:
    """Return this process's shard of a tensor."""
    result: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor
    return result


def whole(tensor: Any) -> Tensor:
    """Return the full tensor; the processes gather their shards for it."""
    result: Tensor = tensor.detach().full_tensor() if is_sharded(tensor) else tensor
    return result


def blank(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an ordinary uninitialised tensor in the shape of a sharded weight; `weight` itself if it is not sharded."""
    if not is_sharded(weight):
        return weight
    return torch.empty(weight.shape, dtype=dtype or weight.dtype, device=local(weight).device)


def from_shard(part: Tensor, weight: Any) -> Tensor:
    """Return this process's shard of a gradient as the sharded gradient of `weight`."""
    kind = sys.modules["torch.distributed.tensor"].DTensor
    sharded: Tensor = kind.from_local(
        part.to(weight.dtype),
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
    return sharded


def sharded_like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return a tensor in the shape of `weight`, sharded like the weight; gathered if the weight is not sharded."""
    if not is_sharded(weight):
        return whole(tensor)
    if is_sharded(tensor):
        return tensor
    part = shard_of(weight)
    rows = tensor.narrow(part.axis, part.rows.start, part.rows.stop - part.rows.start)
    return from_shard(rows.to(local(weight).device).contiguous(), weight)


@torch.no_grad()
def all_reduce_shards(tensors: Sequence[Tensor], weight: Tensor) -> None:
    """Sum each tensor in place over the processes that have the shards of `weight`, in one all-reduce."""
    group = shard_of(weight).group
    if group is not None:
        all_reduce_flat(tensors, [group])


@torch.no_grad()
def all_reduce_flat(tensors: Sequence[Tensor], groups: Sequence[dist.ProcessGroup | None]) -> None:
    """Sum each tensor in place over the processes of `groups`, one group after the other; None stands for all processes.

    One all-reduce of one flat tensor for each dtype, whatever the number of tensors. All processes end with the same bits.
    """
    for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        for group in groups:
            dist.all_reduce(flat, group=group)
        for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
            tensor.copy_(part.view_as(tensor))


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each full tensor; one all-reduce of as many numbers for sharded ones."""
    sharded = [tensor for tensor in tensors if is_sharded(tensor)]
    if not sharded:
        return gradient_norms(tensors)
    squares = torch.stack([square(local(tensor)) for tensor in tensors])
    chosen = torch.tensor([is_sharded(tensor) for tensor in tensors], device=squares.device)
    sums = squares[chosen]
    all_reduce_shards([sums], sharded[0])
    squares[chosen] = sums
    return squares.sqrt_()
