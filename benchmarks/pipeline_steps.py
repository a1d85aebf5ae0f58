"""Steps that a real pipeline of four processes takes, against the dry run: `python -m benchmarks.pipeline_steps`.

Our interpreter of programs and the schedules of torch.distributed.pipelining stand side by side. The stages sleep instead of
computing, one unit forward and two backward (one for the input, one for the weights), so that four processes on fewer CPUs do
not slow each other down. All else is real: micro-batches, transfers over gloo, predictions, updates.
"""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adagp.core.plan import BACKPROP_ALL, Phase, RunLength, predicted_plan
from adagp.engine.attach import EngineOptions, attach_run
from adagp.pipe import PIPELINES, constant_costs, generate, parse_phases, simulate
from adagp.program.distributed.error_broadcast import last_stage_shares
from adagp.program.distributed.placement import (
    CutModel,
    TiedWeights,
    assign_stages,
    pipeline_mesh,
    place_process,
    program_order,
)
from adagp.program.distributed.processes import World
from adagp.program.distributed.stages import ModelStage, SentStage, meta_tensor
from adagp.program.distributed.torch_schedules import SCHEDULES, TorchWorker
from adagp.program.distributed.updates import StageUpdates
from adagp.program.distributed.worker import Worker
from adagp.program.tasks.base import Task
from adagp.program.train.loop import Rate
from adagp.schedules import parse_schedule
from adagp.sources.base import BatchContext
from benchmarks.processes import run_in_processes

DEVICES = 4
MICRO_BATCHES = 4
UNIT = 0.05
"""Seconds in which a device does the forward of a micro-batch."""
TIMES = 3


class Sleep(torch.autograd.Function):
    """Takes its time, forward and backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, forward: float, backward: float) -> Tensor:
        """Sleep for `forward` seconds."""
        ctx.seconds = backward
        time.sleep(forward)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Sleep for `backward` seconds."""
        time.sleep(ctx.seconds)
        return gradients[0].clone(), None, None


class SleepyLayer(nn.Linear):
    """A small linear layer that takes `unit` seconds forward, and as long for each part of its backward.

    The first one's input has no gradient: it takes both parts for its weights.
    """

    def __init__(self, unit: float, *, first: bool) -> None:
        super().__init__(8, 8)
        self.unit, self.first = unit, first

    def forward(self, value: Tensor) -> Tensor:
        """Return the layer's output, after a while."""
        weight = Sleep.apply(self.weight, 0.0, self.unit * (2 if self.first else 1))  # type: ignore[no-untyped-call]
        value = Sleep.apply(value, self.unit, self.unit)  # type: ignore[no-untyped-call]
        return nn.functional.linear(value, weight, self.bias)


class Nearness(Task):
    """Loss and score of numbers; the batches come from elsewhere."""

    batches_per_epoch = 10

    def __init__(self, stages: int) -> None:
        self.stages = stages

    def batches(self, epoch: int, start: int = 0) -> Any:
        """Yield nothing."""
        return iter(())

    def build_model(self) -> nn.Module:
        """Return a layer for each stage."""
        unit = UNIT * DEVICES / self.stages
        return nn.Sequential(*(SleepyLayer(unit, first=number == 0) for number in range(self.stages)))

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
    world = World.join("cpu")
    mesh = pipeline_mesh("cpu", "data", {"pipeline": DEVICES})
    for name in PIPELINES:
        for text in ("BP", "GP,BP", "GP,GP,GP,GP,BP"):
            updates = prepare(name, world, mesh)
            workers: dict[str, Worker | TorchWorker] = {"programs": Worker(name, updates)}
            if name in SCHEDULES:
                workers["torch"] = TorchWorker(name, updates)
            found = [f"{runtime} {steps(one, text)}" for runtime, one in workers.items()]
            if rank == 0:
                print(f"{name:<12}{text:<15} ideal {ideal(name, text)}  {'  '.join(found)}", flush=True)
    world.leave()


def prepare(name: str, world: World, mesh: Any) -> StageUpdates:
    """Return what updates the stages of a pipeline that sleeps."""
    count, holders = assign_stages(name, DEVICES, MICRO_BATCHES)
    task = Nearness(count)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    length = RunLength(2, task.batches_per_epoch)
    schedule = parse_schedule("1:1", length.epochs)
    trainer = attach_run(model, optimizer, length, schedule, {}, engine=EngineOptions(), synchronize=False)
    like = (meta_tensor((2, 8)),)
    stages = [
        ModelStage(SentStage(model.get_submodule(str(site.index))), (site,), like, like)
        for site in trainer.survey.sites
    ]
    shares = last_stage_shares(program_order(name, DEVICES, MICRO_BATCHES, (False,)).program)
    cut = CutModel(stages, place_process(holders, mesh), TiedWeights(stages, holders, mesh))
    return StageUpdates(trainer, cut, MICRO_BATCHES, task, Rate(), world, shares)


def steps(worker: Worker | TorchWorker, text: str) -> str:
    """Return the fewest units that the batches took, after a first time that does not count, and the share of bubbles then."""
    plans = [predicted_plan("predicted") if phase is Phase.GP else BACKPROP_ALL for phase in parse_phases(text)]
    taken, bubble = min([_time(worker, plans) for _ in range(TIMES + 1)][1:])
    return f"{taken / UNIT:6.2f} ({100 * bubble:.0f}%)"


def ideal(name: str, text: str) -> str:
    """Return the steps and the share of bubbles of the dry run."""
    program = generate(name, DEVICES, MICRO_BATCHES, parse_phases(text))
    timeline = simulate(program, constant_costs(program.stages, devices=DEVICES))
    return f"{timeline.steps:5g} ({100 * timeline.bubble_share:.0f}%)"


def _time(worker: Worker | TorchWorker, plans: list[Any]) -> tuple[float, float]:
    trainer, updates = worker.updates.trainer, worker.updates
    samples = [(torch.randn(2 * MICRO_BATCHES, 8), torch.randn(2 * MICRO_BATCHES, 8)) for _ in plans]
    for source in trainer.sources.values():
        source.begin(BatchContext(trainer.at))
    updates.busy = 0.0
    dist.barrier()
    start = time.perf_counter()
    worker.train(plans, samples)
    dist.barrier()
    taken, busy = time.perf_counter() - start, torch.tensor([updates.busy])
    dist.all_reduce(busy)
    return taken, 1 - busy.item() / (taken * DEVICES)


if __name__ == "__main__":
    run_in_processes(work, DEVICES)
