"""Updates of the stages that a process holds: the engine's batch for their sites, reduced over the copies of the stages.

Whichever runtime runs the passes (`worker.py`, `torch_schedules.py`): it activates `listeners` for the sources, computes the
loss with `loss`, and calls `update` for each stage when its passes of a batch are done.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from adagp.core.plan import BACKPROP, Plan, Step
from adagp.data.batches import Share
from adagp.engine.batch import Batch
from adagp.engine.hooks import Listeners, SiteWatcher
from adagp.engine.trainer import Trainer
from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.program.distributed.error_broadcast import ErrorBroadcast
from adagp.program.distributed.placement import CutModel
from adagp.program.distributed.processes import World
from adagp.program.distributed.stages import before_backward, end_passes, exchanged_bytes
from adagp.program.tasks.base import Task, take_share
from adagp.program.train.loop import Rate
from adagp.sources.base import Source
from adagp.sources.pipeline import ErrorSource, PipelineSource


@dataclass
class BatchSums:
    """One process's part of a batch's metrics: of the mean loss, the correct and all predictions; and the seconds."""

    loss: float = 0.0
    right: float = 0.0
    answers: int = 0
    seconds: float = 0.0


def predicts(plan: Plan) -> bool:
    """Return whether a batch has no backward pass."""
    return BACKPROP not in (plan.default, *plan.by_site.values())


class StageUpdates:
    """Connects the sources to the stages, and updates the stages.

    The guard decides for each stage by itself: a common decision would make every stage wait for the last one. `rejected`
    counts the rejected updates; `busy` is the time spent working, not waiting, in seconds.
    """

    def __init__(
        self,
        trainer: Trainer,
        cut: CutModel,
        micro_batches: int,
        task: Task,
        rate: Rate,
        world: World,
        shares: Sequence[Sequence[int]],
    ) -> None:
        self.trainer, self.placement, self.tied = trainer, cut.placement, cut.tied
        self.stages = [stage.bound(trainer.setup.survey, trainer.setup.hooks) for stage in cut.stages]
        self.micro_batches, self.task, self.rate, self.world = micro_batches, task, rate, world
        self.busy, self.rejected = 0.0, 0
        self._updated: set[int] = set()
        self._backwards: Counter[int] = Counter()
        self.sources = pipeline_sources(trainer.sources)
        self._watchers: list[SiteWatcher] = []
        self.errors: ErrorBroadcast | None = None
        for source in self.sources:
            source.reduce_with(self._reduce_predictor)
            watcher: SiteWatcher = source
            if isinstance(source, ErrorSource):
                outputs = self.stages[-1].outputs
                watcher = self.errors = ErrorBroadcast(
                    source, self.placement, world, outputs, shares, trainer.device, self._measured
                )
            self._watchers.append(watcher)

    # During the passes.

    def listeners(self, stages: Sequence[int]) -> Listeners:
        """Return the listeners for the sites of some stages."""
        sites = [site for stage in stages for site in self.stages[stage].sites]
        return Listeners(dict.fromkeys(sites, self._watchers), everywhere=True)

    def _measured(self) -> bool:
        return self.trainer.setup.adapts or self.trainer.setup.quality.due()

    def begin(self, stage: int, number: int, plan: Plan) -> None:
        """Begin the forward pass of a micro-batch; these are numbered through the batches of a window."""
        if self.errors is not None:
            self.errors.begin(stage, number, plan)

    def part(self, samples: Any, number: int) -> Any:
        """Return a micro-batch of this process's pipeline out of the inputs or targets of a whole batch."""
        index = self.placement.replica * self.micro_batches + number % self.micro_batches
        return take_share(Share(index, self.micro_batches * self.placement.replicas), samples)

    def before_backward(self, stage: int) -> None:
        """Begin the backward pass of a micro-batch."""
        if not self.placement.sharded:
            return
        self._backwards[stage] += 1
        before_backward(self.stages[stage], last=self._backwards[stage] == self.micro_batches)

    def loss(self, number: int, plan: Plan, outputs: Sequence[Tensor], targets: Any, sums: BatchSums) -> Tensor:
        """Return a micro-batch's share of the batch's mean loss, and add it and its score to `sums`.

        `targets` are those of the whole batch: if the loss is a mean over items (words, objects), each micro-batch is weighted
        by its number of items.
        """
        part = self.part(targets, number)
        share = self._share(part, targets)
        loss = self.task.loss(as_returned(outputs), part) * share
        with torch.no_grad():
            right, answers = self.task.score(as_returned([output.detach() for output in outputs]), part)
        sums.loss += loss.item()
        sums.right += float(right)
        sums.answers += answers
        if self.errors is not None and self.errors.is_needed(plan):
            floating = [output.detach() for output in outputs if output.is_floating_point()]
            self.errors.note_error(number, self._errors(outputs, part, share), floating)
        return loss

    def _share(self, part: Any, targets: Any) -> float:
        own, whole = self.task.weight(part), self.task.weight(targets)
        if own is None or whole is None:
            return 1 / (self.micro_batches * self.placement.replicas)
        return max(1, own) / max(1, whole)

    def _errors(self, outputs: Sequence[Tensor], part: Any, share: float) -> list[Tensor]:
        """Return the gradients of the loss at the model's outputs; zeros for an output that it does not depend on."""
        leaves = [output.detach().requires_grad_(output.is_floating_point()) for output in outputs]
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        with torch.enable_grad():
            loss = self.task.loss(as_returned(leaves), part) * share
            errors: Sequence[Tensor | None] = torch.autograd.grad(loss, inputs, allow_unused=True)
        return [torch.zeros_like(leaf) if error is None else error for leaf, error in zip(inputs, errors, strict=True)]

    # Updates.

    def update(self, stage: int, batch: int, plan: Plan) -> None:
        """Update `stage` by a batch; after a BP batch, all stages of this process together, when the last is due."""
        stages = [stage]
        if not predicts(plan):
            self._updated.add(stage)
            if len(self._updated) < len(self.placement.local):
                return
            self._updated.clear()
            stages = list(self.placement.local)
        if self.errors is not None and self.errors.is_needed(plan):
            self.errors.show(stages, batch)
        self._exchange(stages, with_gradients=not predicts(plan))
        self._end_passes(stages, learned=not predicts(plan))
        start = time.perf_counter()
        sites = self._sites(stages)
        at = self.trainer.at
        self.rate.before_batch(self.trainer.done + batch)
        update = Batch(self.trainer.setup, plan, Step(at.epoch, at.batch + batch), sites=sites)
        update.complete(self._all_agree)
        update.step()
        self.rejected += update.guarded
        self.trainer.optimizer.zero_grad(set_to_none=True)
        for source in self.sources:
            source.drop(sites)
        self.busy += time.perf_counter() - start

    def end(self) -> None:
        """Forget the batches of a window, which are over."""
        if self.errors is not None:
            self.errors.end()

    def _all_agree(self, finite: bool) -> bool:
        infinite = torch.tensor([float(not finite)])
        self.world.all_reduce([infinite], "requests")
        return infinite.item() == 0

    def _end_passes(self, stages: Sequence[int], *, learned: bool) -> None:
        """Reshard gathered weights, and gradients like them."""
        for number in stages if self.placement.sharded else ():
            stage = self.stages[number]
            self._backwards[number] = 0
            end_passes(stage, self.placement.copies, learned=learned)
            shards, whole = exchanged_bytes(stage)
            self.world.count("weights", shards)
            if learned:
                self.world.count("gradients", whole)
            for source in self.sources:
                source.shard(stage.sites)

    def _exchange(self, stages: Sequence[int], *, with_gradients: bool) -> None:
        """Sum the gradients over the copies of each stage, and average their running statistics and what sources average.

        FSDP2 has summed the gradients of sharded weights already.
        """
        if with_gradients:
            self.tied.all_reduce(self.world)
        if self.placement.partners is None:
            return
        averaged = list(self._averaged(stages))
        summed = [tensor for source in self.sources for tensor in source.summed(self._sites(stages))]
        whole = with_gradients and not self.placement.sharded
        if whole:
            summed += self._untied_gradients(stages)
        scales = [1 / self.placement.copies] * len(averaged) + [1.0] * len(summed)
        kind = "gradients" if whole else "summaries"
        self.world.all_reduce([*averaged, *summed], kind, scales, self.placement.partners)

    def _sites(self, stages: Sequence[int]) -> list[Site]:
        return [site for stage in stages for site in self.stages[stage].sites]

    def _averaged(self, stages: Sequence[int]) -> Iterator[Tensor]:
        """Yield what is averaged over the copies of each stage: tensors of the sources, and running statistics."""
        for stage in stages:
            for source in self.sources:
                yield from source.averaged(self.stages[stage].sites)
            yield from self.stages[stage].buffers

    def _untied_gradients(self, stages: Sequence[int]) -> Iterator[Tensor]:
        for parameter in chain.from_iterable(self.stages[stage].parameters for stage in stages):
            if parameter in self.tied:
                continue
            if parameter.grad is None:  # all copies must send the same tensors
                parameter.grad = torch.zeros_like(parameter)
            yield parameter.grad

    def _reduce_predictor(self, tensors: list[Tensor]) -> None:
        """Sum the predictor's gradients; copies of a stage have the same ones, unless each has its own shard of the weights."""
        scale = 1.0 if self.placement.sharded else 1 / self.placement.copies
        self.world.all_reduce(tensors, "predictor", [scale] * len(tensors))


def pipeline_sources(named: Mapping[str, Source]) -> list[PipelineSource]:
    """Return the sources of a trainer; raise OptionError if one cannot train in a pipeline."""
    sources = []
    for name, source in named.items():
        if not isinstance(source, PipelineSource):
            raise OptionError(f"source '{name}' cannot train in a pipeline: it is not an adagp.sources.PipelineSource.")
        sources.append(source)
    return sources


def as_returned(outputs: Sequence[Tensor]) -> Any:
    """Return the outputs of the last stage as the model returns them: a tensor, or several in a tuple."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
