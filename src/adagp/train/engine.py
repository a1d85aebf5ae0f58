"""One batch under its plan.

Read top to bottom, this file is the story of a batch::

    plan = schedule.plan(step)                  # or backprop, where the guard has broken off a GP phase
    switch off what the plan does not need      # autograd itself, or requires_grad of single parameters
    output = model(inputs)                      # sites are watched
    batch.backward(loss)                        # autograd where some site needs it; sources produce and observe
    batch.step()                                # the user's own optimizer

Within a batch each weight is used with one value, so collecting all gradients and stepping the optimizer once after the
forward pass gives the same weights as updating each layer as soon as its output is known, and works with any optimizer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.errors import UsageError
from adagp.plan import BACKPROP, BACKPROP_ALL, Phase, Plan, Step
from adagp.schedules.base import Schedule
from adagp.sites import Site, Survey
from adagp.sources.base import Source
from adagp.sources.norms import RunningNorms, gradient_norms
from adagp.train.guard import Guard
from adagp.train.quality import QualityMeter
from adagp.train.watch import Watcher

LossFunction = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class BatchResult:
    """What `Trainer.step` did: the phase, the loss before the update, the model's output, and whether the guard refused."""

    phase: Phase
    loss: Tensor
    output: Any
    guarded: bool


class Trainer:
    """Trains a user's model with a user's optimizer, each batch under the plan that the schedule gives.

    Made by `adagp.attach`. Model and optimizer stay the user's own objects: nothing is wrapped or copied.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        sources: Mapping[str, Source],
        survey: Survey,
        *,
        batches_per_epoch: int,
        guard: Guard,
        metrics_every: int,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.sources = dict(sources)
        self.survey = survey
        self.batches_per_epoch = batches_per_epoch
        self.guard = guard
        self.scaler = scaler
        self.at = Step(0, 0)
        self.norms = RunningNorms(survey.sites)
        self.quality = QualityMeter(survey.sites, metrics_every)
        self._broken_off = False
        self._learners = [source for source in self.sources.values() if source.learns]
        self._by_name = {site.name: site for site in survey.sites}
        self._watcher = Watcher(survey.sites)
        for source in self.sources.values():
            source.bind(survey.sites, self.norms)

    @property
    def plan(self) -> Plan:
        """The plan of the coming batch."""
        return BACKPROP_ALL if self._broken_off else self.schedule.plan(self.at)

    @property
    def phase(self) -> Phase:
        """The phase of the coming batch."""
        return self.plan.phase

    def step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> BatchResult:
        """Train on one batch. A tuple of inputs is passed to the model as separate arguments."""
        with self.batch() as batch:
            output = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
            loss = loss_fn(output, targets)
            batch.backward(loss)
            batch.step()
        return BatchResult(batch.phase, loss.detach(), output, batch.guarded)

    @contextmanager
    def batch(self) -> Iterator["Batch"]:
        """Prepare model and autograd for the coming batch; put all back and move on to the next one at the end.

        If the body raises, model and trainer are as before the batch, but for weights that `Batch.step` changed.
        """
        batch = Batch(self, self.plan)
        self._refuse_left_gradients()
        try:
            with self._watcher.awake(batch.audience), _only_needed_gradients(batch, self.survey):
                yield batch
            batch.refuse_unfinished()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            for source in self.sources.values():
                source.forget()
        self._advance(batch)

    def detach(self) -> None:
        """Take the hooks off the model. The trainer cannot be used after that; the model is the user's as before."""
        self._watcher.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return all of the trainer's own state: not the model's, not the optimizer's."""
        return {
            "epoch": self.at.epoch,
            "batch": self.at.batch,
            "broken_off": self._broken_off,
            "norms": self.norms.state_dict(),
            "quality": self.quality.state_dict(),
            "sources": {name: source.state_dict() for name, source in self.sources.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.at = Step(state["epoch"], state["batch"])
        self._broken_off = state["broken_off"]
        self.norms.load_state_dict(state["norms"])
        self.quality.load_state_dict(state["quality"])
        for name, source in self.sources.items():
            source.load_state_dict(state["sources"][name])

    def _refuse_left_gradients(self) -> None:
        if any(parameter.grad is not None for group in self.optimizer.param_groups for parameter in group["params"]):
            raise UsageError(
                "parameters still have gradients from before this batch. adagp cannot accumulate gradients across "
                "batches, as a GP batch has none to add to: accumulate inside one batch with "
                "batch.backward(loss, more=True), or call optimizer.zero_grad(set_to_none=True) first."
            )

    def _advance(self, batch: "Batch") -> None:
        last = self.at.batch + 1 == self.batches_per_epoch
        self.at = Step(self.at.epoch + 1, 0) if last else Step(self.at.epoch, self.at.batch + 1)
        if last:
            for source in self.sources.values():
                source.end_epoch()
        # A guarded phase lasts until the schedule itself leaves it, or the epoch ends.
        still = not last and self.schedule.plan(self.at).phase is Phase.GP
        self._broken_off = still and (self._broken_off or batch.guarded)


class Batch:
    """One batch in progress: ask for its `phase`, run the forward, call `backward`, then `step`."""

    def __init__(self, trainer: Trainer, plan: Plan) -> None:
        self._trainer = trainer
        self.plan = plan
        self.phase = plan.phase
        self.guarded = False
        self._has_gradients = False
        self._stepped = False
        sites = trainer.survey.sites
        self._by_backprop = [site for site in sites if plan.source_of(site.name) == BACKPROP]
        self._elsewhere: dict[str, list[Site]] = {}
        for site in sites:
            if plan.source_of(site.name) != BACKPROP:
                self._elsewhere.setdefault(plan.source_of(site.name), []).append(site)

    @property
    def needs_backward(self) -> bool:
        """Whether this batch has a backward pass."""
        return bool(self._by_backprop) or not self.plan.hold_rest

    @property
    def audience(self) -> dict[Site, list[Source]]:
        """The sources that want to see each site: the one that serves it, or those that learn from it."""
        served = {site: [self._trainer.sources[name]] for name, sites in self._elsewhere.items() for site in sites}
        return served | dict.fromkeys(self._by_backprop, self._trainer._learners)

    @property
    def replaced(self) -> list[Site]:
        """The sites whose weight gradient autograd shall not compute."""
        return [site for sites in self._elsewhere.values() for site in sites]

    def backward(self, loss: Tensor | None = None, *, more: bool = False) -> None:
        """Give every weight of the plan its gradient, in `.grad`, ready for clipping and `step`.

        With backprop in the plan, `loss` is needed; without, it is not looked at. `more=True` says that another micro-batch
        of the same batch follows: gradients (or summaries of outputs, in GP) accumulate until a call without it.
        """
        if self._has_gradients:
            raise UsageError(
                "backward() was called again after the last micro-batch; pass more=True on all but the last."
            )
        trainer = self._trainer
        if self.needs_backward:
            if loss is None:
                raise UsageError(f"a {self.phase.upper()} batch needs the loss: call backward(loss).")
            with trainer._watcher.asleep():
                (loss if trainer.scaler is None else trainer.scaler.scale(loss)).backward()
        if more:
            return
        self._has_gradients = True
        if self.needs_backward and trainer.scaler is not None:
            trainer.scaler.unscale_(trainer.optimizer)
        with trainer._watcher.asleep(), torch.autocast(_device_of(trainer).type, enabled=False):
            self._learn()
            self._take()

    def step(self) -> None:
        """Step the user's optimizer, unless the guard refused this batch."""
        if not self._has_gradients:
            raise UsageError("step() was called before backward().")
        if self._stepped:
            raise UsageError("step() was called twice in one batch.")
        self._stepped = True
        scaler = self._trainer.scaler
        if self.guarded:
            return
        if scaler is not None and self.needs_backward:
            scaler.step(self._trainer.optimizer)
            scaler.update()
        else:
            self._trainer.optimizer.step()

    def refuse_unfinished(self) -> None:
        """Raise if the body of the batch left out one of its two calls."""
        if not self._stepped:
            missing = "step()" if self._has_gradients else "backward() and step()"
            raise UsageError(
                f"the batch ended without {missing}. One batch() is one step of the optimizer; "
                "to accumulate gradients, call backward(loss, more=True) several times inside it."
            )

    def _learn(self) -> None:
        """Show the true gradients to the norms, the metrics and the sources that learn."""
        trainer = self._trainer
        sites = [site for site in self._by_backprop if site.weight.grad is not None]
        truths = [site.weight.grad for site in sites if site.weight.grad is not None]
        if not sites or not trainer._learners:
            return
        norms = gradient_norms(truths)
        if not bool(norms.isfinite().all()):
            return  # nothing to be learned from an overflow
        trainer.norms.update(sites, norms)
        predictions = trainer._learners[0].produce(sites) if trainer.quality.due() else []
        trainer.quality.record(sites, truths, predictions)
        for source in trainer._learners:
            source.observe(sites, truths)

    def _take(self) -> None:
        """Ask the sources for the other gradients and, if the guard allows them, put them in place."""
        pairs: list[tuple[Site, Tensor]] = []
        for name, sites in self._elsewhere.items():
            produced = self._trainer.sources[name].produce(sites)
            pairs += [(site, one) for site, one in zip(sites, produced, strict=True) if one is not None]
        if not pairs:
            return
        sites, gradients = [site for site, _ in pairs], [one for _, one in pairs]
        self.guarded = not self._trainer.guard.allows(sites, gradients, self._trainer.norms)
        if self.guarded:
            self._trainer.optimizer.zero_grad(set_to_none=True)
            return
        for site, gradient in pairs:
            site.weight.grad = gradient


@contextmanager
def _only_needed_gradients(batch: Batch, survey: Survey) -> Iterator[None]:
    """Let autograd compute what the plan needs: nothing at all, or all but the replaced (and, if held, the rest)."""
    if not batch.needs_backward:
        with torch.no_grad():
            yield
        return
    idle: Sequence[nn.Parameter] = [site.weight for site in batch.replaced]
    if batch.plan.hold_rest:
        idle = [*idle, *(one.parameter for one in survey.rest)]
    for parameter in idle:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in idle:
            parameter.requires_grad_(True)


def _device_of(trainer: Trainer) -> torch.device:
    return next(trainer.model.parameters()).device
