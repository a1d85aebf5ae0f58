"""Stages of a model, and a model that is a chain of modules cut into stages. `traced.py` cuts the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from adagp.engine.hooks import ModelHooks
from adagp.engine.validate import try_out
from adagp.errors import ModelError
from adagp.layers.eval_mode import evaluation_mode
from adagp.layers.sites import Site, Survey
from adagp.layers.weights import is_spread, local
from adagp.pipe.partition import partition


@dataclass(frozen=True)
class ModelStage:
    """A part of the model, the sites in it, and the tensors of a micro-batch on the way in and out (on the meta device).

    The module takes and returns as many tensors as pass the cut: of a model with shortcuts several, of the last stage as many
    as the model returns. `stand_ins` are the modules of a traced stage that do the work of sites.
    """

    module: nn.Module
    sites: tuple[Site, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stand_ins: tuple[tuple[nn.Module, Site], ...] = ()

    def bound(self, survey: Survey, hooks: ModelHooks) -> "ModelStage":
        """Return the stage with the sites of a later `survey` of the model, which `hooks` watches."""
        for module, site in self.stand_ins:
            hooks.also_watch(module, survey.sites[site.index])
        return replace(self, sites=tuple(survey.sites[site.index] for site in self.sites))

    def forward(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the module."""
        found = self.module(*values)
        return found if isinstance(found, tuple) else (found,)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trainable parameters of the stage."""
        return [one for one in self.module.parameters() if one.requires_grad]

    @property
    def buffers(self) -> list[Tensor]:
        """The running statistics and other buffers of real numbers."""
        return [one for one in self.module.buffers() if one.is_floating_point()]

    @property
    def tensors(self) -> list[Tensor]:
        """All parameters and buffers."""
        return [*self.module.parameters(), *self.module.buffers()]


class SentStage(nn.Module):
    """A stage whose tensors can be sent: outputs, and gradients of inputs, lie in memory in their own order.

    An output is a tensor of its own, no view and nothing that a layer has saved: a backward in two parts cuts it off its
    graph in place.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *values: Tensor) -> Any:
        """Return what the module returns, ready to be sent."""
        aligned = [_Aligned.apply(one) if one.requires_grad else one for one in values]  # type: ignore[no-untyped-call]
        found = self.module(*aligned)
        return tuple(map(_own, found)) if isinstance(found, tuple) else _own(found)


class _Aligned(torch.autograd.Function):
    """The same tensor; its gradient is contiguous."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def _own(output: Tensor) -> Tensor:
    return output.clone(memory_format=torch.contiguous_format) if output.requires_grad else output.contiguous()


def described(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor that tells shape and type, and holds nothing."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def chain(model: nn.Module, sample: Any) -> tuple[list[nn.Module], list[torch.Size]]:
    """Return modules that, one after the other, compute what `model` computes, and the shapes before, between and after them.

    Sequential containers are taken apart. Of another model its children are tried in their order, with a `Flatten` before
    the first linear layer, which is how many image models are written. No modules are returned if that gives something
    else than the model, or if it takes or gives several tensors. It is tried out on `sample`.
    """
    if not isinstance(sample, Tensor):
        return [], []
    modules, shapes = list(_links(model)), [sample.shape]
    with evaluation_mode(model), torch.no_grad():
        expected, found = model(sample), sample
        if not isinstance(expected, Tensor):
            return [], []
        try:
            for module in modules:
                found = module(found)
                shapes.append(found.shape)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AttributeError):
            return [], []
    return (modules, shapes) if torch.equal(expected, found) else ([], [])


def most_stages(model: nn.Module, survey: Survey, sample: Any) -> int:
    """Return into how many stages `cut` can cut the model; 0 if it is no chain."""
    return len(_starts(chain(model, sample)[0], survey))


def _links(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, nn.Sequential):
        for child in model:
            yield from _links(child)
        return
    children = list(model.children())
    if not children or not _is_top(model, children):
        yield model
        return
    flat = False
    for child in children:
        links = list(_links(child))
        if not flat and isinstance(_first_weighted(links), nn.Linear):
            yield nn.Flatten()
            flat = True
        yield from links


def _is_top(model: nn.Module, children: Sequence[nn.Module]) -> bool:
    """Tell the model itself from its blocks, which stay whole: it ends in a classifier."""
    last = children[-1]
    links = list(last) if isinstance(last, nn.Sequential) else [last]
    return isinstance(links[-1], nn.Linear)


def _first_weighted(links: Sequence[nn.Module]) -> nn.Module:
    return next((link for link in links if any(True for _ in link.parameters())), links[0])


def cut(model: nn.Module, survey: Survey, sample: Tensor, parts: int) -> list[ModelStage]:
    """Cut a chain into `parts` stages, each with a site at least, balanced by their multiply-accumulates."""
    modules, shapes = chain(model, sample)
    owner, starts = _owner(modules), _starts(modules, survey)
    if parts > len(starts):
        raise ModelError(
            f"the model can be cut into {len(starts)} stages at most, one for each module of its chain that has a layer "
            f"with predicted gradients; {parts} were asked for."
        )
    edges = [0, *starts[1:], len(modules)]  # what comes before the first site goes with it
    units = list(pairwise(edges))
    macs = {layer.name: layer.macs for layer in try_out(model, survey, sample).layout.layers}
    work = [sum(macs[site.name] for site in survey.sites if low <= owner[site.module] < high) for low, high in units]
    stages = []
    for chosen in partition(work, parts):
        low, high = units[chosen[0]][0], units[chosen[-1]][1]
        own = tuple(site for site in survey.sites if low <= owner[site.module] < high)
        module = SentStage(nn.Sequential(*modules[low:high]))
        stages.append(ModelStage(module, own, (described(shapes[low]),), (described(shapes[high]),)))
    return stages


def _owner(modules: Sequence[nn.Module]) -> dict[nn.Module, int]:
    """Return in which link of a chain each module is."""
    return {module: place for place, link in enumerate(modules) for module in link.modules()}


def _starts(modules: Sequence[nn.Module], survey: Survey) -> list[int]:
    """Return the links of a chain at which a stage may begin: those with a site."""
    owner = _owner(modules)
    return sorted({owner[site.module] for site in survey.sites}) if modules else []


# Sharded stages.


class _OwnerView(nn.Module):
    """Has the parameters of a module of the model, in the same table, and nothing else: to replace them here does so there."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self._parameters = owner._parameters


def shard_stage(stage: ModelStage, model: nn.Module, mesh: DeviceMesh) -> None:
    """Spread the weights of a stage over the processes of `mesh`; those of `model` are replaced with them."""
    stage.module.add_module("owners", nn.ModuleList(_owners(stage, model)))
    fully_shard(stage.module, mesh=mesh, reshard_after_forward=False)


def _owners(stage: ModelStage, model: nn.Module) -> list[nn.Module]:
    """Return the modules of the model whose parameters a traced stage uses without having the modules."""
    used, inside = {id(one) for one in stage.module.parameters()}, set(stage.module.modules())
    views: list[nn.Module] = []
    for path, owner in model.named_modules():
        own = [one for one in owner._parameters.values() if one is not None]
        if owner in inside or not any(id(one) in used for one in own):
            continue
        if not all(id(one) in used for one in own):
            raise ModelError(
                f"the parameters of module '{path or type(model).__name__}' are used in several stages: with fsdp they are "
                "spread together. Cut elsewhere (--split), or use data in its place."
            )
        views.append(_OwnerView(owner))
    return views


def before_backward(stage: ModelStage, *, last: bool) -> None:
    """Let gradients be added up over the copies of a stage in the backward pass of its `last` micro-batch alone."""
    if isinstance(stage.module, FSDPModule):
        stage.module.set_reshard_after_backward(False)
        stage.module.set_requires_gradient_sync(last)
        stage.module.set_is_last_backward(last)


@torch.no_grad()
def end_passes(stage: ModelStage, copies: int, *, learned: bool) -> None:
    """Put the gathered weights of a stage back, before its optimizer's step; `learned` tells of a backward pass.

    FSDP2 takes the mean over the copies. The loss of each is its share of the whole batch's, so it is the sum that is wanted
    (to have FSDP2 add up needs an operation that gloo has not).
    """
    if isinstance(stage.module, FSDPModule):
        if not learned and hasattr(stage.module, "reset_iter_state"):
            stage.module.reset_iter_state()
        stage.module.reshard()
        for one in stage.module.parameters():
            if learned and one.grad is not None:
                local(one.grad).mul_(copies)


def exchanged_bytes(stage: ModelStage) -> tuple[int, int]:
    """Return the bytes of the weights that this process holds of a spread stage, and of the whole of them."""
    spread = [one for one in stage.module.parameters() if is_spread(one)]
    return sum(local(one).nbytes for one in spread), sum(one.numel() * one.element_size() for one in spread)
