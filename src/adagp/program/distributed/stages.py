"""Stages of a model, and cutting a model that is a chain of modules. `graph_cut.py` cuts the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from adagp.engine.hooks import ModelHooks
from adagp.engine.trial_forward import trial_forward
from adagp.errors import ModelError
from adagp.layers.eval_mode import evaluation_mode
from adagp.layers.sites import Site, Survey
from adagp.layers.weights import is_sharded, local
from adagp.pipe.partition import partition


@dataclass(frozen=True)
class ModelStage:
    """A part of the model, the sites in it, and its inputs and outputs for a micro-batch (on the meta device).

    The module takes and returns as many tensors as pass the cut: several in a model with shortcuts; the last stage returns as
    many as the model. `stand_ins` are the modules of a traced stage that replace the modules of sites.
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
        outputs = self.module(*values)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trainable parameters of the stage."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @property
    def buffers(self) -> list[Tensor]:
        """The floating-point buffers, such as running statistics."""
        return [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]

    @property
    def tensors(self) -> list[Tensor]:
        """All parameters and buffers."""
        return [*self.module.parameters(), *self.module.buffers()]


class SentStage(nn.Module):
    """A stage whose tensors can be sent: outputs, and gradients of inputs, are contiguous.

    An output is a tensor of its own, neither a view nor one that a layer has saved: a backward in two parts detaches it from
    its graph in place.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *values: Tensor) -> Any:
        """Return the module's outputs, ready to be sent."""
        inputs = [
            _ContiguousGradient.apply(value) if value.requires_grad else value  # type: ignore[no-untyped-call]
            for value in values
        ]
        outputs = self.module(*inputs)
        return tuple(map(_own, outputs)) if isinstance(outputs, tuple) else _own(outputs)


class _ContiguousGradient(torch.autograd.Function):
    """The same tensor; its gradient is contiguous."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def _own(output: Tensor) -> Tensor:
    return output.clone(memory_format=torch.contiguous_format) if output.requires_grad else output.contiguous()


def meta_tensor(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor with a shape and a type, and no data."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def chain(model: nn.Module, sample: Any) -> tuple[list[nn.Module], list[torch.Size]]:
    """Return modules that, one after the other, compute what `model` computes, and the shapes before, between and after them.

    Sequential containers are unpacked. Of another model the children are tried in their order, with a `Flatten` before the
    first linear layer, as in many image models. The chain is run on `sample`: no modules are returned if the result differs
    from the model's, or if the model takes or returns several tensors.
    """
    if not isinstance(sample, Tensor):
        return [], []
    modules, shapes = list(_links(model)), [sample.shape]
    with evaluation_mode(model), torch.no_grad():
        expected, output = model(sample), sample
        if not isinstance(expected, Tensor):
            return [], []
        try:
            for module in modules:
                output = module(output)
                shapes.append(output.shape)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AttributeError):
            return [], []
    return (modules, shapes) if torch.equal(expected, output) else ([], [])


def most_stages(model: nn.Module, survey: Survey, sample: Any) -> int:
    """Return the largest number of stages that `cut` can make; 0 if the model is not a chain."""
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
    """Return whether this is the model itself, which ends in a classifier, and not a block, which stays whole."""
    last = children[-1]
    links = list(last) if isinstance(last, nn.Sequential) else [last]
    return isinstance(links[-1], nn.Linear)


def _first_weighted(links: Sequence[nn.Module]) -> nn.Module:
    return next((link for link in links if any(True for _ in link.parameters())), links[0])


def cut(model: nn.Module, survey: Survey, sample: Tensor, parts: int) -> list[ModelStage]:
    """Cut a chain into `parts` stages, each with at least one site, balanced by multiply-accumulates."""
    modules, shapes = chain(model, sample)
    owner, starts = _owner(modules), _starts(modules, survey)
    if parts > len(starts):
        raise ModelError(
            f"the model can be cut into {len(starts)} stages at most, one for each module of its chain that has a layer "
            f"with predicted gradients; the pipeline has {parts}."
        )
    edges = [0, *starts[1:], len(modules)]  # modules before the first site go with it
    units = list(pairwise(edges))
    macs = {layer.name: layer.macs for layer in trial_forward(model, survey, sample).layout.layers}
    work = [sum(macs[site.name] for site in survey.sites if low <= owner[site.module] < high) for low, high in units]
    stages = []
    for chosen in partition(work, parts):
        low, high = units[chosen[0]][0], units[chosen[-1]][1]
        stage_sites = tuple(site for site in survey.sites if low <= owner[site.module] < high)
        module = SentStage(nn.Sequential(*modules[low:high]))
        stages.append(ModelStage(module, stage_sites, (meta_tensor(shapes[low]),), (meta_tensor(shapes[high]),)))
    return stages


def _owner(modules: Sequence[nn.Module]) -> dict[nn.Module, int]:
    """Return the index of the link of a chain that each module is in."""
    return {module: index for index, link in enumerate(modules) for module in link.modules()}


def _starts(modules: Sequence[nn.Module], survey: Survey) -> list[int]:
    """Return the indices of the links at which a stage may begin: those with a site."""
    owner = _owner(modules)
    return sorted({owner[site.module] for site in survey.sites}) if modules else []


# Sharded stages (`fsdp=2,pipeline=2`), by FSDP2's `fully_shard`. A stage is gathered at its first forward pass of a batch and
# resharded when it is updated: once per batch, however many micro-batches there are. Gradients are reduced in the backward pass
# of the last micro-batch; each process keeps its shard.


class _OwnerView(nn.Module):
    """Shares the table of parameters with a module of the model: replacing a parameter here replaces it there."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self._parameters = owner._parameters


def shard_stage(stage: ModelStage, model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the weights of a stage over the processes of `mesh`, in the model itself as well."""
    stage.module.add_module("owners", nn.ModuleList(_owners(stage, model)))
    fully_shard(stage.module, mesh=mesh, reshard_after_forward=False)


def _owners(stage: ModelStage, model: nn.Module) -> list[nn.Module]:
    """Return the modules of the model whose parameters a traced stage uses without containing the modules."""
    used, inside = {id(parameter) for parameter in stage.module.parameters()}, set(stage.module.modules())
    views: list[nn.Module] = []
    for path, owner in model.named_modules():
        parameters = [id(parameter) for parameter in owner._parameters.values() if parameter is not None]
        if owner in inside or used.isdisjoint(parameters):
            continue
        if not used.issuperset(parameters):
            raise ModelError(
                f"the parameters of module '{path or type(model).__name__}' are used in several stages: with fsdp they are "
                "sharded together. Cut elsewhere (--split), or use data instead."
            )
        views.append(_OwnerView(owner))
    return views


def before_backward(stage: ModelStage, *, last: bool) -> None:
    """Reduce gradients over the copies of a stage only in the backward pass of its `last` micro-batch."""
    if isinstance(stage.module, FSDPModule):
        stage.module.set_reshard_after_backward(False)
        stage.module.set_requires_gradient_sync(last)
        stage.module.set_is_last_backward(last)


@torch.no_grad()
def end_passes(stage: ModelStage, copies: int, *, learned: bool) -> None:
    """Reshard the gathered weights of a stage before its optimizer's step; `learned` if there was a backward pass.

    FSDP2 takes the mean over the copies. The loss of each is its share of the whole batch's, so the sum is needed (FSDP2's own
    sum needs an operation that gloo does not have).
    """
    if isinstance(stage.module, FSDPModule):
        if not learned and hasattr(stage.module, "reset_iter_state"):
            stage.module.reset_iter_state()
        stage.module.reshard()
        for parameter in stage.module.parameters():
            if learned and parameter.grad is not None:
                local(parameter.grad).mul_(copies)


def exchanged_bytes(stage: ModelStage) -> tuple[int, int]:
    """Return the bytes of this process's shards of a stage's weights, and of the whole weights."""
    weights = [parameter for parameter in stage.module.parameters() if is_sharded(parameter)]
    return sum(local(weight).nbytes for weight in weights), sum(
        weight.numel() * weight.element_size() for weight in weights
    )
