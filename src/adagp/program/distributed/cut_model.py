"""A model in the stages of a pipeline, and which of them this process holds: made before an optimizer is built on it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from adagp.errors import ModelError, OptionError
from adagp.layers.sites import Survey, survey
from adagp.program.distributed.placement import StagePlacement, assign_stages, pipeline_mesh, place
from adagp.program.distributed.processes import World
from adagp.program.distributed.stage_shards import shard_stage
from adagp.program.distributed.stages import ModelStage, cut, most_stages
from adagp.program.distributed.tied import TiedWeights, shared_parameters
from adagp.program.distributed.traced import cut_traced, split_names
from adagp.program.run.config import TrainConfig
from adagp.program.run.parallel import FSDP, PIPELINE, ParallelLayout


@dataclass(frozen=True)
class CutModel:
    """The `stages` of a model, this process's `placement`, and what several stages use (`tied`).

    With fsdp the weights of the stages held here are spread over their copies, and `whole` is a model of its own in the first
    process, for evaluation.
    """

    stages: list[ModelStage]
    placement: StagePlacement
    tied: TiedWeights
    whole: nn.Module | None = None


def cut_and_place(
    model: nn.Module, sample: Any, config: TrainConfig, layout: ParallelLayout, device: torch.device, world: World
) -> CutModel:
    """Cut `model` for a run; `sample` has the inputs of a micro-batch. All processes must call this together."""
    sizes = layout.sizes(world.size)
    count, holders = assign_stages(layout.schedule, sizes[PIPELINE], config.micro_batches)
    names = [name.strip() for name in config.split.split(",") if name.strip()]
    stages = cut_model(model, survey(model), sample, count, names)
    if FSDP in layout.kinds:
        refuse_tied(model, stages)
    with world.forming_groups():
        mesh = pipeline_mesh(device.type, layout.copies, sizes)
        placement, tied, whole = place(holders, mesh), TiedWeights(stages, holders, mesh), None
    if FSDP in layout.kinds:
        placement = replace(placement, spread=True)
        whole = copy.deepcopy(model) if world.rank == 0 else None
        for number in placement.local:
            shard_stage(stages[number], model, mesh[FSDP])
    return CutModel(stages, placement, tied, whole)


def cut_model(model: nn.Module, sites: Survey, sample: Any, count: int, names: Sequence[str] = ()) -> list[ModelStage]:
    """Return the model in `count` stages: as a chain of modules, or at the modules that are named, or that fit."""
    if names and len(names) != count - 1:
        raise OptionError(f"--split names {len(names)} modules; the pipeline has {count} stages, so {count - 1} cuts.")
    if not names and most_stages(model, sites, sample) >= count:
        return cut(model, sites, sample, count)
    names = names or split_names(model, sites, sample, count)
    stages = cut_traced(model, sites, sample if isinstance(sample, tuple) else (sample,), names)
    for number, stage in enumerate(stages):
        if not stage.sites:
            raise OptionError(f"stage {number} has no layer with predicted gradients; cut elsewhere (--split).")
    return stages


def refuse_tied(model: nn.Module, stages: Sequence[ModelStage]) -> None:
    """Refuse weights that several stages use, where weights are spread."""
    names = {id(one): name for name, one in model.named_parameters()}
    for users, parameters in shared_parameters(stages).items():
        raise ModelError(
            f"weight '{names[id(parameters[0])]}' is used in the stages {' and '.join(map(str, users))}: with fsdp each of "
            "them would spread it by itself. Cut elsewhere (--split), or use data in the place of fsdp."
        )
