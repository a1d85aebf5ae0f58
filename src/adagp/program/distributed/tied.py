"""Weights that several stages use (a tied embedding): each process that holds such a stage has a copy of them.

They belong to no site, so only BP batches move them: the processes add up their gradients, and all take the same step.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from adagp.program.distributed.processes import World
from adagp.program.distributed.stages import ModelStage


class TiedWeights:
    """The weights that several of `stages` use, as far as this process holds one of these; all must make this together."""

    def __init__(self, stages: Sequence[ModelStage], holders: Sequence[tuple[int, ...]], mesh: DeviceMesh) -> None:
        self._groups: list[tuple[str, list[nn.Parameter], dist.ProcessGroup]] = []
        self._known: set[int] = set()
        for users, parameters in sorted(shared_parameters(stages).items()):
            self._known |= {id(one) for one in parameters}
            using = [device for device, held in enumerate(holders) if set(users) & set(held)]
            ranks = sorted(row[device] for row in mesh.mesh.tolist() for device in using)
            if len(ranks) < 2:  # one process has all of these stages, and autograd adds up
                continue
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                self._groups.append((f"weights of the stages {' and '.join(map(str, users))}", parameters, group))

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self._known

    def add_up(self, world: World) -> None:
        """Let each of them have the sum of the gradients of all stages, in all copies of the pipeline."""
        for _, parameters, group in self._groups:
            for one in parameters:
                if one.grad is None:  # all must send the same tensors
                    one.grad = torch.zeros_like(one)
            world.add_up([one.grad for one in parameters if one.grad is not None], "gradients", among=group)

    def copies(self) -> Iterator[tuple[str, list[nn.Parameter]]]:
        """Yield what must be the same in all processes that have it, by name."""
        for name, parameters, _ in self._groups:
            yield name, parameters


def shared_parameters(stages: Sequence[ModelStage]) -> dict[tuple[int, ...], list[nn.Parameter]]:
    """Return the parameters that several stages use, by these stages."""
    users: dict[nn.Parameter, list[int]] = {}
    for number, stage in enumerate(stages):
        for one in stage.parameters:
            users.setdefault(one, []).append(number)
    found: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for one, numbers in users.items():
        if len(numbers) > 1:
            found.setdefault(tuple(numbers), []).append(one)
    return found
