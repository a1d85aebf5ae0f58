"""Steps that a real pipeline of four processes takes, against the dry run: `python -m benchmarks.pipeline_steps`.

The stages sleep instead of computing, one unit forward and two backward, so that four processes on fewer CPUs do not
get into each other's way. All else is real: micro-batches, transfers over gloo, predictions, updates.
"""

import multiprocessing
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adagp.distributed.pipeline import assign_stages, place
from adagp.distributed.processes import World
from adagp.distributed.stages import ModelStage
from adagp.distributed.worker import Worker
from adagp.engine.attach import attach
from adagp.pipe import PIPELINES, constant_costs, generate, parse_phases, simulate
from adagp.plan import BACKPROP_ALL, Phase
from adagp.schedules.base import predicted_plan
from adagp.tasks.base import Task
from adagp.train.rates import Rate

DEVICES = 4
MICRO_BATCHES = 4
UNIT = 0.05
"""Seconds of a forward."""


class Sleep(torch.autograd.Function):
    """One unit forward, two backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """Sleep one unit."""
        time.sleep(UNIT)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Sleep two units."""
        time.sleep(2 * UNIT)
        return gradients[0].clone()


class SleepyLayer(nn.Module):
    """A small linear layer that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: Tensor) -> Tensor:
        """Return the layer's output, after a while."""
        output: Tensor = Sleep.apply(self.linear(value))  # type: ignore[no-untyped-call]  # torch's own
        return output


class Nearness(Task):
    """Loss and score of numbers; the batches come from elsewhere."""

    batches_per_epoch = 10

    def batches(self, epoch: int, start: int = 0) -> Any:
        """Yield nothing."""
        return iter(())

    def build_model(self) -> nn.Module:
        """Return a layer for each device."""
        return nn.Sequential(*(SleepyLayer() for _ in range(DEVICES)))

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean square."""
        return (output - targets).square().mean()

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Count nothing."""
        return torch.zeros(()), len(targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return nothing."""
        return {}


def work(rank: int, port: int) -> None:
    """Be one of the processes; the first one prints."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(DEVICES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world, task = World.join("cpu"), Nearness()
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = attach(model, optimizer, epochs=2, batches_per_epoch=task.batches_per_epoch, schedule="1:1")
    sites, shape = trainer.survey.sites, torch.Size((2, 8))
    stages = [ModelStage((model.get_submodule(str(place)),), (sites[place],), shape, shape) for place in range(DEVICES)]
    for name in PIPELINES:
        _, holders = assign_stages(name, DEVICES, MICRO_BATCHES)
        worker = Worker(name, trainer, stages, place(holders, rank), MICRO_BATCHES, task, Rate(), world)
        for text in ("BP", "GP,BP", "BP,BP", "GP,GP,GP,GP,BP"):
            phases = parse_phases(text)
            plans = [predicted_plan("predicted") if phase is Phase.GP else BACKPROP_ALL for phase in phases]
            taken = min(_time(worker, plans) for _ in range(3)) / UNIT
            ideal = simulate(generate(name, DEVICES, MICRO_BATCHES, phases), constant_costs(DEVICES)).steps
            if rank == 0:
                print(f"{name:<8} {text:<15} {taken:6.2f} of {ideal:g} steps", flush=True)
    world.leave()


def _time(worker: Worker, plans: list[Any]) -> float:
    samples = [(torch.randn(2 * MICRO_BATCHES, 8), torch.randn(2 * MICRO_BATCHES, 8)) for _ in plans]
    dist.barrier()
    start = time.perf_counter()
    worker.train(plans, samples)
    dist.barrier()
    return time.perf_counter() - start


def main() -> None:
    """Start the processes and wait for them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank, port)) for rank in range(DEVICES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
