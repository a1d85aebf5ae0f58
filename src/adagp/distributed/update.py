"""The update of a process's stages at the end of a batch: what `adagp.engine.trainer` does for a whole model."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from adagp.distributed.processes import Group
from adagp.distributed.stages import ModelStage
from adagp.engine.trainer import Trainer
from adagp.plan import Plan
from adagp.predictor.layout import gradient_norms
from adagp.sites import Site
from adagp.sources.base import Source
from adagp.sources.support.learned import LearnedSource


class Updater:
    """Updates the stages `local` of `stages`, and lets the predictor learn from all stages of all processes.

    `partners` is the group of the two processes that hold the same stages (Chimera), or None. The guard refuses for a
    stage alone: a common answer would make every stage wait for the last one. `refused` counts the refusals.
    """

    def __init__(
        self,
        trainer: Trainer,
        stages: Sequence[ModelStage],
        local: Sequence[int],
        group: Group,
        partners: dist.ProcessGroup | None,
    ) -> None:
        self.trainer = trainer
        self.stages = stages
        self.local = local
        self.group = group
        self.partners = partners
        self.refused = 0
        self._reached: set[int] = set()
        self.learners = [source for source in trainer.sources.values() if isinstance(source, LearnedSource)]
        for source in self.learners:
            source.learner.on_gradients = self._add_up_predictor

    def audience(self, stage: int) -> dict[Site, Sequence[Source]]:
        """Return who watches the sites of a stage."""
        return dict.fromkeys(self.stages[stage].sites, self.learners)

    def update(self, stage: int, plan: Plan, rate: float | None = None) -> float:
        """Update `stage` by a batch under `plan`; return the seconds that were spent working, not waiting.

        `rate` is the batch's learning rate, None if it is the one before. By a BP batch all stages of this process are
        updated when the last of them is asked for.
        """
        for group in self.trainer.optimizer.param_groups if rate is not None else ():
            group["lr"] = rate
        if plan.hold_rest:
            self._exchange([stage], with_gradients=False)
            start = time.perf_counter()
            self._predict(stage, plan)
            return time.perf_counter() - start
        self._reached.add(stage)
        if len(self._reached) < len(self.local):
            return 0.0
        self._reached.clear()
        self._exchange(self.local, with_gradients=True)
        start = time.perf_counter()
        self._learn()
        self.trainer.optimizer.step()
        self._forget(self.local)
        return time.perf_counter() - start

    def _predict(self, stage: int, plan: Plan) -> None:
        """Give the stage's weights their predicted gradients and step, unless the guard refuses."""
        sites = self.stages[stage].sites
        source = self.trainer.sources[plan.default]
        pairs = source.give(sites)
        seen, gradients = [site for site, _ in pairs], [one for _, one in pairs]
        if pairs and self.trainer.guard.allows(seen, source.sizes(gradients), self.trainer.norms):
            for site, gradient in pairs:
                site.weight.grad = gradient
            self.trainer.optimizer.step()
        else:
            self.refused += bool(pairs)
        self._forget([stage])

    def _learn(self) -> None:
        """Show the true gradients to the norms, the metrics and the predictor, unless some process has an overflow."""
        if not self.learners:
            return
        trainer = self.trainer
        sites = [site for stage in self.local for site in self.stages[stage].sites]
        truths = [site.weight.grad for site in sites if site.weight.grad is not None]
        norms = gradient_norms(truths)
        overflows = (~norms.isfinite().all()).float().reshape(1)
        self.group.add_up([overflows], "wishes")
        if overflows.item() > 0:
            return
        trainer.norms.update(sites, norms)
        predictions = self.learners[0].produce(sites) if trainer.quality.due() else []
        trainer.quality.record(sites, truths, predictions)
        for source in self.learners:
            source.observe(sites, truths)

    def _forget(self, stages: Sequence[int]) -> None:
        self.trainer.optimizer.zero_grad(set_to_none=True)
        for source in self.learners:
            source.drop([site for stage in stages for site in self.stages[stage].sites])

    def _exchange(self, stages: Sequence[int], *, with_gradients: bool) -> None:
        """Add up the gradients of the two copies of each stage, and average their summaries and running statistics."""
        if self.partners is None:
            return
        tensors: list[Tensor] = []
        for stage in stages:
            tensors += [tensor for source in self.learners for tensor in source.shared(self.stages[stage].sites)]
            tensors += self.stages[stage].buffers
        scales = [0.5] * len(tensors)
        if with_gradients:
            self._complete_gradients(stages)
            tensors += [one.grad for stage in stages for one in self.stages[stage].parameters if one.grad is not None]
            scales += [1.0] * (len(tensors) - len(scales))
        self.group.add_up(tensors, "gradients" if with_gradients else "summaries", scales, self.partners)

    def _complete_gradients(self, stages: Sequence[int]) -> None:
        """Make sure that both partners send the same tensors: a parameter that got no gradient has one of zero."""
        for stage in stages:
            for one in self.stages[stage].parameters:
                if one.grad is None:
                    one.grad = torch.zeros_like(one)

    def _add_up_predictor(self, tensors: list[Tensor]) -> None:
        copies = 1 if self.partners is None else 2
        self.group.add_up(tensors, "predictor", [1 / copies] * len(tensors))
