"""Pipeline parallel: every process computes some stages of the model, and the micro-batches of a batch flow through them.

What runs is a program of `adagp.pipe.generate`, validated before; which process holds which stages is read from it, so a
pipeline of your own runs as well. GP batches and the BP batch that ends their phase make a window: they flow without a
pause. After a window, the processes agree whether to save or to stop.

Normalisation layers see micro-batches; where a stage has several copies (Chimera), their running statistics are averaged.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from adagp.distributed.loop import ParallelLoop
from adagp.distributed.processes import digest
from adagp.distributed.stages import cut
from adagp.distributed.worker import Placement, Worker, ordered
from adagp.errors import OptionError
from adagp.pipe.actions import UPDATE
from adagp.plan import BACKPROP, Phase, Plan, Step
from adagp.sources.base import BatchContext
from adagp.train.loop import Observer

LONGEST_WINDOW = 16
"""Batches that flow at most before the processes agree on anything."""


class PipelineLoop(ParallelLoop):
    """The loop of a pipeline parallel run; the first process keeps the whole model for evaluation and checkpoints."""

    def __init__(self, *arguments: Any, pipeline: str, sample: Tensor, **options: Any) -> None:
        super().__init__(*arguments, **options)
        micro_batches = self.config.micro_batches
        count, holders = assign_stages(pipeline, self.world.size, micro_batches)
        self.stages = cut(self.trainer.model, self.trainer.survey, sample, count)
        self.placement = place(holders, self.world.rank)
        self._prefixes = self._names()
        shared = (micro_batches, self.task, self.rate, self.world)
        self.worker = Worker(pipeline, self.trainer, self.stages, self.placement, *shared)
        self._elapsed = 0.0

    def _release_others(self) -> None:
        """Free the weights of stages that this process does not hold; the first one needs them to evaluate and save."""
        if self.world.rank > 0:
            held = {id(one) for stage in self.placement.local for one in self.stages[stage].parameters}
            others = [one for one in self.trainer.model.parameters() if id(one) not in held]
            release(others)
            for one in others:
                self.trainer.optimizer.state.pop(one, None)

    def _batches(self, epoch: int, observer: Observer) -> Iterator[None]:
        self._release_others()
        batches = self.task.batches(epoch, self.trainer.at.batch)
        while True:
            before = time.perf_counter()
            plans = self._window(epoch)
            samples = list(islice(batches, len(plans)))
            if not samples:
                return
            self.meter.add_seconds("data", time.perf_counter() - before)
            # A window has one BP batch at most, its last: what sources draw is for that one.
            last = BatchContext(Step(epoch, self.trainer.at.batch + len(plans) - 1))
            for source in self.trainer.sources.values():
                source.begin(last)
            start = time.perf_counter()
            results = self.worker.train(plans, samples)
            self._elapsed += time.perf_counter() - start
            for plan, sums in zip(plans, results, strict=True):
                at = self.trainer.at
                self.meter.add(plan.phase, sums.loss, sums.right, sums.answers, sums.seconds, guarded=False)
                self.trainer.advance()
                self._tell(observer, at, plan.phase)
            self.world.add_up([self.make_requests()], "requests")
            self.check_copies(self._copies)
            yield

    def _window(self, epoch: int) -> list[Plan]:
        """Return the plans of the coming batches: GP batches up to the next BP batch, or to the end of the epoch."""
        plans: list[Plan] = []
        length = self.trainer.epoch_length(epoch)
        place = self.trainer.at.batch if self.trainer.at.epoch == epoch else length
        for batch in range(place, min(place + LONGEST_WINDOW, length)):
            plans.append(self.trainer.schedule.plan(Step(epoch, batch)))
            if plans[-1].by_site or plans[-1].hold_rest != (plans[-1].default != BACKPROP):
                raise OptionError(
                    "a pipeline trains each batch by backprop or by prediction; this schedule mixes them."
                )
            if plans[-1].phase is not Phase.GP:
                break
        return plans

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self._reduce_meter(1.0)
        self.collect()
        return super()._end_epoch(epoch)

    def _extra(self) -> dict[str, Any]:
        worker = self.worker
        numbers = torch.tensor([worker.busy, self._elapsed, worker.refused], dtype=torch.float64)
        self.world.add_up([numbers], "metrics")
        busy, elapsed, refused = numbers.tolist()
        worker.busy, self._elapsed, worker.refused = 0.0, 0.0, 0
        share = 1 - busy / elapsed if elapsed else 0.0
        return super()._extra() | {"bubble_share": share, "refused_updates": round(refused)}

    # What is spread over the processes, and brought together in the first one.

    def _names(self) -> list[str]:
        """Return the names of the modules that this process holds, each with the dot that ends it."""
        held = {module for stage in self.placement.local for module in self.stages[stage].modules}
        return [f"{name}." for name, module in self.trainer.model.named_modules() if module in held]

    def collect(self) -> None:
        """Bring weights, optimizer state, norms and quality figures of all stages together in the first process."""
        if self.world.rank == 0:
            for part in self.world.gather(None)[1:]:
                self._adopt(part)
        else:
            self.world.gather(self._held())

    def _held(self) -> dict[str, Any]:
        trainer = self.trainer
        names = {name for name in trainer.model.state_dict() if name.startswith(tuple(self._prefixes))}
        return {
            "model": {name: value for name, value in trainer.model.state_dict().items() if name in names},
            "optimizer": trainer.optimizer.state_dict()["state"],
            "sites": [site.index for stage in self.placement.local for site in self.stages[stage].sites],
            "norms": trainer.norms.state_dict(),
            "quality": trainer.quality.state_dict(),
        }

    def _adopt(self, part: dict[str, Any]) -> None:
        trainer = self.trainer
        trainer.model.load_state_dict(part["model"], strict=False)
        optimizer = trainer.optimizer.state_dict()
        optimizer["state"] |= part["optimizer"]
        trainer.optimizer.load_state_dict(optimizer)
        for keeper, name in ((trainer.norms, "norms"), (trainer.quality, "quality")):
            state = keeper.state_dict()
            for field, value in part[name].items():
                if isinstance(value, Tensor):
                    state[field][part["sites"]] = value[part["sites"]]
                elif isinstance(value, dict):
                    state[field] |= value
            keeper.load_state_dict(state)

    def _copies(self) -> dict[str, str]:
        copies = {f"stage {stage}": digest(self.stages[stage].tensors) for stage in self.placement.local}
        networks = (source.network.state_dict() for source in self.learners)
        return copies | {"the predictor": digest(tensor for state in networks for tensor in state.values())}


def assign_stages(pipeline: str, processes: int, micro_batches: int) -> tuple[int, list[tuple[int, ...]]]:
    """Return the number of stages of a pipeline, and the stages that each process holds.

    Where processes hold copies of a stage, they must hold the same stages, do as many micro-batches of each, and update
    them in the same order: what they have seen is averaged with equal weights, in that order.
    """
    program = ordered(pipeline, processes, micro_batches, (True, True, False)).program
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
                f"pipeline '{pipeline}' cannot be run by {processes} processes with {micro_batches} micro-batches: "
                f"processes {one} and {other} hold a stage in common, but do not share its micro-batches equally."
            )
    return program.stages, holders


def place(holders: Sequence[tuple[int, ...]], rank: int) -> Placement:
    """Return the placement of the process `rank`; all processes must call this together, as they form groups."""
    local, placement = holders[rank], Placement(holders[rank])
    for held in dict.fromkeys(holders):
        ranks = [one for one, stages in enumerate(holders) if stages == held]
        if len(ranks) > 1:
            partners = dist.new_group(ranks)
            if held == local:
                placement = Placement(local, len(ranks), partners)
    return placement


def release(parameters: Iterable[Tensor]) -> None:
    """Free the memory of `parameters`, which keep their shape: one zero stands for all their numbers."""
    for one in parameters:
        one.data = one.data.new_zeros(()).expand(one.shape)
