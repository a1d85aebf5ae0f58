"""Stages whose weights are spread over their copies (`fsdp=2,pipeline=2`), by FSDP2's `fully_shard`.

A stage is gathered at its first forward pass of a batch and put back when it is updated: once a batch, however many
micro-batches there are. Gradients are added up with the last micro-batch's backward pass, each process keeping its part.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from adagp.errors import ModelError
from adagp.layers.weights import is_spread, laid_like, local, part_of
from adagp.program.distributed.stages import ModelStage

_PART, _ROWS = "first row of a part", "rows"


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


def without_shards(state: Any) -> Any:
    """Return a nested state without its spread tensors."""
    if isinstance(state, dict):
        return {key: without_shards(one) for key, one in state.items() if not is_spread(one)}
    return state


def as_parts(state: Any) -> Any:
    """Return a nested state with the part held here in the place of each spread tensor, and a note which one it is."""
    if is_spread(state):
        return {_PART: part_of(state).rows.start, _ROWS: local(state)}
    if isinstance(state, dict):
        return {key: as_parts(one) for key, one in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(as_parts(one) for one in state)
    return state


def joined(states: Sequence[Any]) -> Any:
    """Return the state whose parts several processes have; what they have alike is taken from the first."""
    first = states[0]
    if isinstance(first, dict):
        if _PART in first:
            return torch.cat([one[_ROWS] for one in sorted(states, key=lambda one: int(one[_PART]))])
        return {key: joined([one[key] for one in states if key in one]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(joined(values) for values in zip(*states, strict=True))
    return first


def laid_out(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return a loop's state with weights, and what the optimizer keeps of each, spread as those of `model` are."""
    own = model.state_dict()
    weights = {name: laid_like(one, own[name]) if name in own else one for name, one in state["model"].items()}
    parameters = list(model.parameters())
    kept = {place: _like(moments, parameters[place]) for place, moments in state["optimizer"]["state"].items()}
    return {**state, "model": weights, "optimizer": state["optimizer"] | {"state": kept}}


def _like(moments: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    return {
        name: laid_like(one, parameter) if isinstance(one, Tensor) and one.shape == parameter.shape else one
        for name, one in moments.items()
    }
