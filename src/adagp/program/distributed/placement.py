"""Which process holds which stages: read from the pipeline's program, once for each copy of the pipeline."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe.actions import UPDATE, with_broadcast
from adagp.pipe.generate import generate
from adagp.pipe.order import Order
from adagp.program.run.parallel import PIPELINE

Holders = list[tuple[int, ...]]
"""The stages that each device of a pipeline holds."""


@dataclass(frozen=True)
class StagePlacement:
    """A process's place: it is `device` of its pipeline, and holds the stages `local`.

    `peers` are the processes of the pipeline's devices, `pipeline` their group. There are `replicas` pipelines, each with its
    share of the samples; `data` is the group of the processes with the same device in all of them. `partners` are all
    that hold the same stages, if several do: `copies` is their number; `spread` says that each has a part of the weights.
    `lanes` are two groups of all processes, for what goes to a later process and to an earlier one: each pair of processes
    has then one way for each direction, in which things arrive in the order in which they were sent.
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
    spread: bool = False
    lanes: tuple[dist.ProcessGroup | None, dist.ProcessGroup | None] = (None, None)

    def lane(self, sender: int, receiver: int) -> dist.ProcessGroup | None:
        """Return the group by which one process sends to another; None stands for the group of all."""
        return self.lanes[sender > receiver]


@lru_cache(maxsize=64)
def ordered(name: str, devices: int, micro_batches: int, predicted: tuple[bool, ...], broadcast: bool = False) -> Order:
    """Return the validated program for batches that are predicted or not; `broadcast` of the error, where that is needed."""
    program = generate(name, devices, micro_batches, [Phase.GP if one else Phase.BP for one in predicted])
    return Order(with_broadcast(program) if broadcast else program)


def assign_stages(pipeline: str, devices: int, micro_batches: int) -> tuple[int, Holders]:
    """Return the number of stages of a pipeline, and the stages that each device holds.

    Where devices hold copies of a stage, they must hold the same stages, do as many micro-batches of each, and update
    them in the same order: what they have seen is averaged with equal weights, in that order.
    """
    program = ordered(pipeline, devices, micro_batches, (True, True, False)).program
    work = [
        (
            Counter((action.stage, action.kind) for action in row),
            [action for action in row if action.kind == UPDATE],
        )
        for row in program.devices
    ]
    holders = [tuple(sorted({action.stage for action in row})) for row in program.devices]
    for (one, held), (other, also) in combinations(enumerate(holders), 2):
        if set(held) & set(also) and work[one] != work[other]:
            raise OptionError(
                f"pipeline '{pipeline}' cannot be run by {devices} processes with {micro_batches} micro-batches: "
                f"processes {one} and {other} hold a stage in common, but do not share its micro-batches equally."
            )
    return program.stages, holders


def pipeline_mesh(device: str, copies: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """Return the processes as pipelines side by side; `copies` names that dimension. All processes must call this together."""
    return init_device_mesh(device, (sizes.get(copies, 1), sizes[PIPELINE]), mesh_dim_names=(copies, PIPELINE))


def place(holders: Sequence[tuple[int, ...]], mesh: DeviceMesh) -> StagePlacement:
    """Return this process's placement; all processes must call this together, as they form groups."""
    replica, device = mesh.get_coordinate() or (0, 0)
    rows: list[list[int]] = mesh.mesh.tolist()
    copies, partners = 1, None
    for held in dict.fromkeys(holders):
        ranks = [row[one] for row in rows for one, stages in enumerate(holders) if stages == held]
        if len(ranks) > 1:
            group = dist.new_group(sorted(ranks))
            if held == holders[device]:
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
