"""A user's own loop in several processes: what sources produce is averaged, so that all copies of a model stay equal.

In BP batches DDP averages the gradients itself. In GP batches every process produces gradients from its own samples; their
mean, which is the same everywhere, is what the guard judges and the optimizer uses. So weights and the guard's verdicts
never differ, though each process's predictor learns from what it sees itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.errors import ModelError, UsageError
from adagp.schedules import Schedule
from adagp.sites import Site


def several_processes() -> bool:
    """Tell whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def refuse_unknown_parallelism(model: nn.Module, schedule: Schedule, *, several: bool) -> None:
    """Refuse models whose weights are spread over devices, and plans that DDP cannot follow."""
    spread = [name for name, one in model.named_parameters() if type(one.data).__name__ == "DTensor"]
    if spread:
        raise ModelError(
            f"weight '{spread[0]}' is a DTensor, spread over devices (FSDP, tensor parallel). adagp takes gradients of whole "
            "weights; use DDP, or one device."
        )
    for one in model.modules():
        if isinstance(one, nn.DataParallel) and len(one.device_ids) > 1:
            raise ModelError(
                "the model is in nn.DataParallel on several devices, whose copies last for one call: nobody sees all of their "
                "layers. Use DistributedDataParallel, a process a device."
            )
        if type(one).__name__ == "FullyShardedDataParallel":
            raise ModelError(
                "the model's weights are spread over devices (FullyShardedDataParallel). adagp takes gradients of whole "
                "weights; use DDP, or one device."
            )
    if several and schedule.partial:
        raise UsageError(
            "a schedule that takes some sites from a source and others by backprop does not work in a loop of several "
            "processes: DDP waits for the gradients of all parameters. Use one whose GP batches have no backward pass."
        )


class Processes:
    """The processes that train copies of `model` together, if there are `several`."""

    def __init__(self, model: nn.Module, *, several: bool) -> None:
        self.several = several
        self._wrapped = [one for one in model.modules() if isinstance(one, DistributedDataParallel)] if several else []

    @contextmanager
    def without_exchange(self, backward: bool) -> Iterator[None]:
        """Keep DDP from waiting for a backward pass, unless there is one."""
        if backward:
            yield
            return
        before = [one.require_backward_grad_sync for one in self._wrapped]
        try:
            for one in self._wrapped:
                one.require_backward_grad_sync = False
            yield
        finally:
            for one, value in zip(self._wrapped, before, strict=True):
                one.require_backward_grad_sync = value

    def average(self, given: Sequence[tuple[Site, Tensor | None]]) -> list[tuple[Site, Tensor]]:
        """Return the mean gradient of each site over the processes, 0 where a process has none; no site that none has.

        All processes must be asked about the same sites.
        """
        if not given:
            return []
        device = given[0][0].weight.device
        counts = torch.tensor([float(one is not None) for _, one in given], device=device)
        parts = [torch.zeros_like(site.weight) if one is None else one for site, one in given]
        flat = torch.cat([counts, *(one.reshape(-1).to(torch.float32) for one in parts)])
        dist.all_reduce(flat)
        counts, *sums = flat.split([len(parts), *(one.numel() for one in parts)])
        world = dist.get_world_size()
        return [
            (site, (total / world).view(one.shape).to(one.dtype))
            for (site, _), one, total, count in zip(given, parts, sums, counts.tolist(), strict=True)
            if count
        ]
