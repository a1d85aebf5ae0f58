"""Updates of the stages that a process holds: the engine's batch for their sites, with what copies have seen put together.

Whatever runs the passes (`worker.py`, `schedules.py`), it lets the sources watch by `listeners`, takes the loss by `loss`, and
asks for an `update` of each stage when its passes of a batch are done.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adagp.distributed.error_broadcast import ErrorBroadcast
from adagp.distributed.placement import StagePlacement
from adagp.distributed.processes import World
from adagp.distributed.stages import ModelStage
from adagp.engine.batch import Batch
from adagp.engine.hooks import Listeners, SiteWatcher
from adagp.engine.trainer import Trainer
from adagp.plan import BACKPROP, Plan, Step
from adagp.sources.feedback import FeedbackSource
from adagp.sources.support.learned import LearnedSource
from adagp.tasks.base import Task
from adagp.train.rates import Rate


@dataclass
class BatchSums:
    """What a process saw of a batch: its share of the mean loss, of the right answers and of the answers; and the time."""

    loss: float = 0.0
    right: float = 0.0
    answers: int = 0
    seconds: float = 0.0


def predicts(plan: Plan) -> bool:
    """Tell whether a batch has no backward pass."""
    return BACKPROP not in (plan.default, *plan.by_site.values())


class StageUpdates:
    """Lets sources watch the stages, and updates these.

    The guard refuses for a stage alone: a common answer would make every stage wait for the last one. `refused` counts the
    refusals; `busy` is the time spent working, not waiting, in seconds.
    """

    def __init__(
        self,
        trainer: Trainer,
        stages: Sequence[ModelStage],
        placement: StagePlacement,
        micro_batches: int,
        task: Task,
        rate: Rate,
        world: World,
        shares: Sequence[Sequence[int]],
    ) -> None:
        self.trainer, self.stages, self.placement = trainer, stages, placement
        self.micro_batches, self.task, self.rate, self.world = micro_batches, task, rate, world
        self.busy, self.refused = 0.0, 0
        self._updated: set[int] = set()
        self.learners = [source for source in trainer.sources.values() if isinstance(source, LearnedSource)]
        for source in self.learners:
            source.learner.on_gradients = self._add_up_predictor
        self.errors: ErrorBroadcast | None = None
        for one in trainer.sources.values():
            if isinstance(one, FeedbackSource):
                output = stages[-1].outputs[0]
                self.errors = ErrorBroadcast(one, placement, world, output, shares, trainer.device)

    # During the passes.

    def listeners(self, stages: Sequence[int]) -> Listeners:
        """Return who watches the sites of some stages."""
        watchers: list[SiteWatcher] = [*self.learners]
        if self.errors is not None:
            watchers.append(self.errors)
        sites = [site for stage in stages for site in self.stages[stage].sites]
        return Listeners(dict.fromkeys(sites, watchers), everywhere=True)

    def begin(self, stage: int, number: int, plan: Plan) -> None:
        """Take note that the forward of a micro-batch begins; they are numbered through the batches of a window."""
        if self.errors is not None:
            self.errors.begin(stage, number, plan)

    def loss(self, number: int, plan: Plan, output: Tensor, targets: Tensor, sums: BatchSums) -> Tensor:
        """Return a micro-batch's share of the batch's mean loss, and take note of it, of its score and its error."""
        share = 1 / (self.micro_batches * self.placement.replicas)
        loss = self.task.loss(output, targets) * share
        right, answers = self.task.score(output.detach(), targets)
        sums.loss += loss.item()
        sums.right += float(right)
        sums.answers += answers
        if self.errors is not None and self.errors.wanted(plan):
            leaf = output.detach().requires_grad_()
            with torch.enable_grad():
                error = torch.autograd.grad(self.task.loss(leaf, targets) * share, leaf)[0]
            self.errors.note_error(number, error)
        return loss

    # Updates.

    def update(self, stage: int, batch: int, plan: Plan) -> None:
        """Update `stage` by a batch; by a BP batch all stages of this process, when the last of them is asked for."""
        stages = [stage]
        if not predicts(plan):
            self._updated.add(stage)
            if len(self._updated) < len(self.placement.local):
                return
            self._updated.clear()
            stages = list(self.placement.local)
        if self.errors is not None and self.errors.wanted(plan):
            self.errors.show(stages, batch)
        self._exchange(stages, with_gradients=not predicts(plan))
        start = time.perf_counter()
        sites = [site for one in stages for site in self.stages[one].sites]
        at = self.trainer.at
        self.rate.before_batch(self.trainer.done + batch)
        update = Batch(self.trainer.setup, plan, Step(at.epoch, at.batch + batch), sites=sites)
        update.complete(self._all_agree)
        update.step()
        self.refused += update.guarded
        self.trainer.optimizer.zero_grad(set_to_none=True)
        for source in self.learners:
            source.drop(sites)
        if self.errors is not None:
            self.errors.source.forget()
        self.busy += time.perf_counter() - start

    def end(self) -> None:
        """Forget the batches of a window, which are over."""
        if self.errors is not None:
            self.errors.end()

    def _all_agree(self, finite: bool) -> bool:
        refusals = torch.tensor([float(not finite)])
        self.world.add_up([refusals], "requests")
        return refusals.item() == 0

    def _exchange(self, stages: Sequence[int], *, with_gradients: bool) -> None:
        """Add up the gradients of all copies of each stage, and average their summaries and running statistics."""
        if self.placement.partners is None:
            return
        tensors: list[Tensor] = []
        for stage in stages:
            tensors += [tensor for source in self.learners for tensor in source.shared(self.stages[stage].sites)]
            tensors += self.stages[stage].buffers
        scales = [1 / self.placement.copies] * len(tensors)
        if self.errors is not None:
            sites = [site for stage in stages for site in self.stages[stage].sites]
            tensors += self.errors.source.partial_sums(sites)
        for one in [one for stage in stages for one in self.stages[stage].parameters] if with_gradients else []:
            if one.grad is None:  # all copies must send the same tensors
                one.grad = torch.zeros_like(one)
            tensors.append(one.grad)
        scales += [1.0] * (len(tensors) - len(scales))
        kind = "gradients" if with_gradients else "summaries"
        self.world.add_up(tensors, kind, scales, self.placement.partners)

    def _add_up_predictor(self, tensors: list[Tensor]) -> None:
        self.world.add_up(tensors, "predictor", [1 / self.placement.copies] * len(tensors))
