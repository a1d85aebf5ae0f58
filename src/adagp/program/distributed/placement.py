"""Cutting a model into the stages of a pipeline, and which process holds which stages: read from the pipeline's program."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from adagp.core.plan import Phase
from adagp.errors import ModelError, OptionError
from adagp.layers.sites import Survey, survey
from adagp.pipe.actions import UPDATE, with_broadcast
from adagp.pipe.generate import generate
from adagp.pipe.order import Order
from adagp.program.distributed.graph_cut import cut_traced, split_names
from adagp.program.distributed.processes import World
from adagp.program.distributed.stages import ModelStage, cut, most_stages, shard_stage
from adagp.program.run.config import TrainConfig
from adagp.program.run.parallel import FSDP, PIPELINE, ParallelLayout

Holders = list[tuple[int, ...]]
"""The stages that each device of a pipeline holds."""


@dataclass(frozen=True)
class StagePlacement:
    """The position of a process: it is `device` of its pipeline, and holds the stages `local`.

    `peers` are the processes of the pipeline's devices, `pipeline` their group. There are `replicas` pipelines, each with its
    share of the samples; `data` is the group of the processes with the same device in all of them. `partners` is the group of
    all that hold the same stages, if several do, and `copies` their number; with `sharded`, each has a shard of the weights.
    `lanes` are two groups of all processes, for messages to a later process and to an earlier one: so each pair of processes
    has one channel for each direction, in which messages arrive in the order in which they were sent.
    """

    local: tuple[int, ...]
    device: int
    peers: tuple[int, ...]
    pipeline: dist.ProcessGroup
    data: dist.ProcessGroup
    replica: int = 0
    replicas: int = 1
    copies: int = 1
    partners: dist.ProcessGroup | None = None
    sharded: bool = False
    lanes: tuple[dist.ProcessGroup | None, dist.ProcessGroup | None] = (None, None)

    def lane(self, sender: int, receiver: int) -> dist.ProcessGroup | None:
        """Return the group by which one process sends to another; None is the default group."""
        return self.lanes[sender > receiver]


@lru_cache(maxsize=64)
def program_order(
    name: str, devices: int, micro_batches: int, predicted: tuple[bool, ...], broadcast: bool = False
) -> Order:
    """Return the validated program of some batches, each predicted or not; with `broadcast`, stages wait for the error."""
    program = generate(
        name, devices, micro_batches, [Phase.GP if is_predicted else Phase.BP for is_predicted in predicted]
    )
    return Order(with_broadcast(program) if broadcast else program)


def assign_stages(pipeline: str, devices: int, micro_batches: int) -> tuple[int, Holders]:
    """Return the number of stages of a pipeline, and the stages that each device holds.

    Where devices hold copies of a stage, they must hold the same stages, do as many micro-batches of each, and update
    them in the same order: what they have seen is averaged with equal weights, in that order.
    """
    program = program_order(pipeline, devices, micro_batches, (True, True, False)).program
    work = [
        (Counter((action.stage, action.kind) for action in row), [action for action in row if action.kind == UPDATE])
        for row in program.devices
    ]
    holders = [tuple(sorted({action.stage for action in row})) for row in program.devices]
    for (first, first_stages), (second, second_stages) in combinations(enumerate(holders), 2):
        if set(first_stages) & set(second_stages) and work[first] != work[second]:
            raise OptionError(
                f"pipeline '{pipeline}' cannot be run by {devices} processes with {micro_batches} micro-batches: "
                f"processes {first} and {second} hold a stage in common, but do not share its micro-batches equally."
            )
    return program.stages, holders


def pipeline_mesh(device: str, copies: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """Return the mesh of all pipelines; `copies` names its first dimension. All processes must call this together."""
    return init_device_mesh(device, (sizes.get(copies, 1), sizes[PIPELINE]), mesh_dim_names=(copies, PIPELINE))


def place_process(holders: Sequence[tuple[int, ...]], mesh: DeviceMesh) -> StagePlacement:
    """Return this process's placement; all processes must call this together, as they form groups."""
    replica, device = mesh.get_coordinate() or (0, 0)
    rows: list[list[int]] = mesh.mesh.tolist()
    copies, partners = 1, None
    for held_stages in dict.fromkeys(holders):
        ranks = [row[other] for row in rows for other, stages in enumerate(holders) if stages == held_stages]
        if len(ranks) > 1:
            group = dist.new_group(sorted(ranks))
            if held_stages == holders[device]:
                copies, partners = len(ranks), group
    return StagePlacement(
        local=holders[device],
        device=device,
        peers=tuple(rows[replica]),
        pipeline=mesh.get_group(PIPELINE),
        data=mesh.get_group(0),
        replica=replica,
        replicas=len(rows),
        copies=copies,
        partners=partners,
        lanes=(dist.new_group(), dist.new_group()),
    )


class TiedWeights:
    """Weights that several of `stages` use (a tied embedding); every process that holds such a stage has a copy of them.

    They belong to no site, so only BP batches change them: the processes sum their gradients, and all take the same step.
    All processes must build this together, as they form groups.
    """

    def __init__(self, stages: Sequence[ModelStage], holders: Sequence[tuple[int, ...]], mesh: DeviceMesh) -> None:
        self._groups: list[tuple[str, list[nn.Parameter], dist.ProcessGroup]] = []
        self._ids: set[int] = set()
        for users, parameters in sorted(shared_parameters(stages).items()):
            self._ids |= {id(parameter) for parameter in parameters}
            using = [device for device, local in enumerate(holders) if set(users) & set(local)]
            ranks = sorted(row[device] for row in mesh.mesh.tolist() for device in using)
            if len(ranks) < 2:  # one process has all of these stages, and autograd sums
                continue
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                self._groups.append((f"weights of the stages {' and '.join(map(str, users))}", parameters, group))

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self._ids

    def all_reduce(self, world: World) -> None:
        """Sum the gradients of each of them over all stages, in all copies of the pipeline."""
        for _, parameters, group in self._groups:
            for parameter in parameters:
                if parameter.grad is None:  # all must send the same tensors
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            world.all_reduce(gradients, "gradients", group=group)

    def copies(self) -> Iterator[tuple[str, list[nn.Parameter]]]:
        """Yield the weights that must be equal in all processes that have them, by name."""
        for name, parameters, _ in self._groups:
            yield name, parameters


def shared_parameters(stages: Sequence[ModelStage]) -> dict[tuple[int, ...], list[nn.Parameter]]:
    """Return the parameters that several stages use, by these stages."""
    users: dict[nn.Parameter, list[int]] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters:
            users.setdefault(parameter, []).append(number)
    shared: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for parameter, numbers in users.items():
        if len(numbers) > 1:
            shared.setdefault(tuple(numbers), []).append(parameter)
    return shared


@dataclass(frozen=True)
class CutModel:
    """The `stages` of a model, this process's `placement`, and the weights that several stages use (`tied`).

    With fsdp the weights of the stages held here are sharded over their copies, and the first process has another, `whole`
    model for evaluation.
    """

    stages: list[ModelStage]
    placement: StagePlacement
    tied: TiedWeights
    whole: nn.Module | None = None


def cut_and_place(
    model: nn.Module, sample: Any, config: TrainConfig, layout: ParallelLayout, device: torch.device, world: World
) -> CutModel:
    """Cut `model` for a run, before an optimizer is built on it; `sample` has the inputs of a micro-batch.

    All processes must call this together.
    """
    sizes = layout.sizes(world.size)
    count, holders = assign_stages(layout.schedule, sizes[PIPELINE], config.micro_batches)
    names = [name.strip() for name in config.split.split(",") if name.strip()]
    stages = cut_model(model, survey(model), sample, count, names)
    if FSDP in layout.kinds:
        check_not_tied(model, stages)
    with world.forming_groups():
        mesh = pipeline_mesh(device.type, layout.copies, sizes)
        placement, tied, whole = place_process(holders, mesh), TiedWeights(stages, holders, mesh), None
    if FSDP in layout.kinds:
        placement = replace(placement, sharded=True)
        whole = copy.deepcopy(model) if world.rank == 0 else None
        for number in placement.local:
            shard_stage(stages[number], model, mesh[FSDP])
    return CutModel(stages, placement, tied, whole)


def cut_model(model: nn.Module, sites: Survey, sample: Any, count: int, names: Sequence[str] = ()) -> list[ModelStage]:
    """Return the model in `count` stages: as a chain of modules, or cut at `names`, or at blocks of about equal work."""
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


def check_not_tied(model: nn.Module, stages: Sequence[ModelStage]) -> None:
    """Raise ModelError if several stages use a weight: sharded stages cannot."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for users, parameters in shared_parameters(stages).items():
        raise ModelError(
            f"weight '{names[id(parameters[0])]}' is used in the stages {' and '.join(map(str, users))}: with fsdp each of "
            "them would shard it by itself. Cut elsewhere (--split), or use data instead of fsdp."
        )
