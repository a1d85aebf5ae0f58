"""A user's own loop in several processes: DDP, or FSDP2 (`fully_shard`) on a mesh of one or two dimensions.

In BP batches DDP and FSDP2 average the gradients themselves. In GP batches there are none to average: the processes add up what
their sources have seen of their samples (`Source.join`). Then each produces the gradient of the whole batch, or those rows of
it that belong to its shard. Gradients of sources that do not join, such as the user's own, are averaged instead. So weights and
the guard's verdicts are the same in all processes.

FSDP2 leaves some parameters gathered after a forward pass, because it expects a backward pass. A GP batch has none: here they
are resharded, otherwise the next forward pass would use the weights from before the optimizer's step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.errors import ModelError
from adagp.layers.sites import Survey
from adagp.layers.weights import all_reduce_flat, is_sharded, is_sharded_once, mesh_of, whole
from adagp.sources.base import Rounds, in_step


def several_processes() -> bool:
    """Return whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_sharded_model(model: nn.Module) -> bool:
    """Return whether some parameters of a model are sharded over processes."""
    return any(is_sharded(parameter) for parameter in model.parameters())


def check_parallelism(model: nn.Module) -> None:
    """Raise if the model is distributed by anything but DDP or `fully_shard`."""
    for module in model.modules():
        if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
            raise ModelError(
                "the model is in nn.DataParallel on several devices, which makes new copies for each call, so adagp "
                "cannot hook their layers. Use DistributedDataParallel, with one process per device."
            )
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ModelError(
                "the model's weights are sharded over devices by FullyShardedDataParallel, which flattens those of "
                "several layers into one parameter. Use fully_shard (FSDP2), or DDP."
            )
    sharded = {id(parameter) for root in _roots(model) for parameter in root.parameters()}
    for name, parameter in model.named_parameters():
        if is_sharded(parameter) and not (id(parameter) in sharded and is_sharded_once(parameter)):
            raise ModelError(
                f"weight '{name}' is a DTensor that is not sharded by fully_shard alone (tensor parallel): each process sees a "
                "part of its layer's outputs or inputs. Use fully_shard on a mesh of one or two dimensions, or DDP."
            )


def check_sharded_alike(survey: Survey) -> None:
    """Raise if the weights of only some sites are sharded: the gradients of the others would not be averaged."""
    sharded = [site for site in survey.sites if site.is_sharded]
    for site in survey.sites:
        if sharded and not site.is_sharded:
            raise ModelError(
                f"the weight of layer '{site.name}' is not sharded over the processes, that of '{sharded[0].name}' is: "
                f"fully_shard does not average its gradient. Shard it as well, or exclude it (exclude=['{site.name}'])."
            )
        if sharded and mesh_of(site.weight) != mesh_of(sharded[0].weight):
            raise ModelError(
                f"the weights of layers '{site.name}' and '{sharded[0].name}' are sharded over different device meshes. "
                "Use one."
            )


class Processes:
    """The processes that train copies, or parts, of `model` together, if there are `several`."""

    def __init__(self, model: nn.Module, *, several: bool) -> None:
        self.several = several
        self._wrapped = [part for part in model.modules() if several and isinstance(part, DistributedDataParallel)]
        self._roots = _roots(model) if several else []
        self._groups = _groups(model, self._wrapped) if several else []
        self.on_exchange: Callable[[int], AbstractContextManager[None]] = lambda amount: nullcontext()
        """Called with the bytes that this process sends in an exchange; the exchange runs inside the context it returns."""

    def reshard(self) -> None:
        """Give the model its sharded parameters, those of the optimizer, if a forward pass has left gathered ones."""
        for root in self._roots:
            for module in root.modules():
                if hasattr(module, "set_reshard_after_forward"):
                    module.reshard()

    def end_forward(self) -> None:
        """End forward passes that no backward pass follows."""
        for root in self._roots:
            if hasattr(root, "reset_iter_state"):  # torch 2.13: also forgets in which order the layers were called
                root.reset_iter_state()
        self.reshard()

    @contextmanager
    def without_exchange(self, whole_backward: bool) -> Iterator[None]:
        """Keep DDP from waiting for the gradients of all parameters, unless a backward pass will bring them."""
        if whole_backward:
            yield
            return
        previous = [wrapped.require_backward_grad_sync for wrapped in self._wrapped]
        try:
            for wrapped in self._wrapped:
                wrapped.require_backward_grad_sync = False
            yield
        finally:
            for wrapped, value in zip(self._wrapped, previous, strict=True):
                wrapped.require_backward_grad_sync = value

    def join(self, exchanges: Iterable[Rounds]) -> None:
        """Sum over the processes what sources yield, the same round of all sources in one exchange."""
        for tensors in in_step(exchanges):
            self._add_up(tensors)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the true gradients of `parameters` of a DDP model whose own averaging was switched off."""
        if self._wrapped:
            waiting = list(parameters)
            means = self.average(waiting, [parameter.grad for parameter in waiting])
            for parameter, mean in zip(waiting, means, strict=True):
                parameter.grad = mean

    def average(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the mean of each weight's gradient over the processes. A missing gradient counts as 0; if all processes miss
        it, the mean is None.

        All processes must pass the same weights. Gradients are full tensors, also those of sharded weights.
        """
        if not weights:
            return []
        device = weights[0].device
        counts = torch.tensor([*(float(gradient is not None) for gradient in gradients), 1.0], device=device)
        sums = [
            torch.zeros(weight.shape, device=device) if gradient is None else whole(gradient).float().contiguous()
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        self._add_up([counts, *sums])
        *present, size = counts.tolist()
        return [
            total.div_(size).to(weight.dtype) if count else None
            for weight, total, count in zip(weights, sums, present, strict=True)
        ]

    def _add_up(self, tensors: Sequence[Tensor]) -> None:
        with self.on_exchange(sum(tensor.numel() * tensor.element_size() for tensor in tensors)):
            all_reduce_flat(tensors, self._groups)


def _roots(model: nn.Module) -> list[Any]:
    roots: list[Any] = []
    inside: set[int] = set()
    for module in model.modules():
        if hasattr(module, "set_reshard_after_forward") and id(module) not in inside:
            roots.append(module)
            inside.update(id(part) for part in module.modules())
    return roots


def _groups(model: nn.Module, wrapped: Sequence[DistributedDataParallel]) -> list[dist.ProcessGroup | None]:
    """Return the process groups over which sums of a batch are taken, one after the other. None stands for all processes."""
    meshes = [mesh_of(parameter) for parameter in model.parameters() if is_sharded(parameter)]
    if meshes:
        mesh = meshes[0]
        return [None] if mesh.size() == dist.get_world_size() else [mesh.get_group(axis) for axis in range(mesh.ndim)]
    return [wrapped[0].process_group] if wrapped else [None]
