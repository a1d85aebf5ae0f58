"""Pipeline parallel: every process computes some stages of the model, and the micro-batches of a batch flow through them.

What runs is a program of `adagp.pipe.generate`, validated before. GP batches and the BP batch that ends their phase make a
window: they flow without a pause. After a window, the processes agree whether to save or to stop.

Normalisation layers see micro-batches; where a stage has two copies (Chimera), their running statistics are averaged.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from adagp.distributed.loop import ParallelLoop
from adagp.distributed.processes import digest
from adagp.distributed.stages import cut
from adagp.distributed.update import Updater
from adagp.distributed.worker import BatchSums, Worker
from adagp.engine.hooks import Watcher
from adagp.errors import OptionError
from adagp.plan import BACKPROP, Phase, Plan, Step
from adagp.sources.base import Moment
from adagp.train.loop import News, Observer
from adagp.train.rates import BatchRate

LONGEST_WINDOW = 16
"""Batches that flow at most before the processes agree on anything."""


class PipelineLoop(ParallelLoop):
    """The loop of a pipeline parallel run; the first process keeps the whole model for evaluation and checkpoints."""

    def __init__(self, *arguments: Any, pipeline: str, sample: Tensor, **options: Any) -> None:
        super().__init__(*arguments, **options)
        size, rank = self.group.size, self.group.rank
        sites = self.trainer.survey.sites
        self.stages = cut(self.trainer.model, sites, sample, size)
        self.local = sorted({rank, size - 1 - rank}) if pipeline == "chimera" else [rank]  # the same for both partners
        self._prefixes = self._names()
        updater = Updater(self.trainer, self.stages, self.local, self.group, self._partners(pipeline))
        micro_batches = self.config.micro_batches
        watcher = Watcher(self.trainer.model, sites)
        self.worker = Worker(pipeline, self.stages, micro_batches, self.task, self.group, watcher, updater)
        self._elapsed = 0.0

    def _partners(self, pipeline: str) -> dist.ProcessGroup | None:
        if pipeline != "chimera":
            return None
        size = self.group.size
        pairs: list[dist.ProcessGroup] = [dist.new_group([low, size - 1 - low]) for low in range(size // 2)]
        return pairs[min(self.group.rank, size - 1 - self.group.rank)]

    def run(self, observer: Observer, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until some process wants to stop; all but the first forget the weights of others' stages."""
        if self.group.rank > 0:
            held = {id(one) for stage in self.local for one in self.stages[stage].parameters}
            others = [one for one in self.trainer.model.parameters() if id(one) not in held]
            release(others)
            for one in others:
                self.trainer.optimizer.state.pop(one, None)
        return super().run(observer, stop)

    def _batches(self, epoch: int, observer: Observer) -> Iterator[None]:
        batches = self.task.batches(epoch, self.trainer.at.batch)
        while True:
            before = time.perf_counter()
            plans = self._window(epoch)
            samples = list(islice(batches, len(plans)))
            if not samples:
                return
            self.meter.add_seconds("data", time.perf_counter() - before)
            for (
                source
            ) in self.trainer.sources.values():  # a window has one BP batch at most, its last: what is drawn is for it
                source.begin(Moment(Step(epoch, self.trainer.at.batch + len(plans) - 1)))
            start = time.perf_counter()
            results = self.worker.run(plans, samples, self._rates(len(plans)))
            self._elapsed += time.perf_counter() - start
            for plan, sums in zip(plans, results, strict=True):
                self._note(plan, sums, observer)
            self.group.add_up([self.make_wishes()], "wishes")
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

    def _rates(self, count: int) -> list[float]:
        """Return the learning rates of the next `count` batches; none if the rate does not change with each batch."""
        done = self.trainer.done
        return [self.scheduler.at(done + one) for one in range(count)] if isinstance(self.scheduler, BatchRate) else []

    def _note(self, plan: Plan, sums: BatchSums, observer: Observer) -> None:
        at = self.trainer.at
        self.meter.add(plan.phase, sums.loss, sums.right, sums.answers, sums.seconds, guarded=False)
        last = at.batch + 1 == self.trainer.epoch_length(at.epoch)
        self.trainer.at = Step(at.epoch + 1, 0) if last else Step(at.epoch, at.batch + 1)
        if last:
            for source in self.trainer.sources.values():
                source.end_epoch()
        observer.on_batch(News(at.epoch, at.batch, plan.phase, self.meter.mean_loss, self.meter.mean_score))

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self.group.phase = ""
        self._reduce_meter(1.0)
        self.collect()
        return super()._end_epoch(epoch)

    def _extra(self) -> dict[str, Any]:
        updater = self.worker.updater
        numbers = torch.tensor([self.worker.busy, self._elapsed, updater.refused], dtype=torch.float64)
        self.group.add_up([numbers], "metrics")
        busy, elapsed, refused = numbers.tolist()
        self.worker.busy, self._elapsed, updater.refused = 0.0, 0.0, 0
        share = 1 - busy / elapsed if elapsed else 0.0
        return super()._extra() | {"bubble_share": share, "refused_updates": round(refused)}

    # What is spread over the processes, and brought together in the first one.

    def _names(self) -> list[str]:
        """Return the names of the modules that this process holds, each with the dot that ends it."""
        held = {module for stage in self.local for module in self.stages[stage].modules}
        return [f"{name}." for name, module in self.trainer.model.named_modules() if module in held]

    def collect(self) -> None:
        """Bring weights, optimizer state, norms and quality figures of all stages together in the first process."""
        if self.group.rank == 0:
            for part in self.group.gather(None)[1:]:
                self._adopt(part)
        else:
            self.group.gather(self._held())

    def _held(self) -> dict[str, Any]:
        trainer = self.trainer
        names = {name for name in trainer.model.state_dict() if name.startswith(tuple(self._prefixes))}
        return {
            "model": {name: value for name, value in trainer.model.state_dict().items() if name in names},
            "optimizer": trainer.optimizer.state_dict()["state"],
            "sites": [site.index for stage in self.local for site in self.stages[stage].sites],
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
        copies = {f"stage {stage}": digest(self.stages[stage].tensors) for stage in self.local}
        networks = (source.network.state_dict() for source in self.learners)
        return copies | {"the predictor": digest(tensor for state in networks for tensor in state.values())}


def release(parameters: Iterable[Tensor]) -> None:
    """Free the memory of `parameters`, which keep their shape: one zero stands for all their numbers."""
    for one in parameters:
        one.data = one.data.new_zeros(()).expand(one.shape)
