"""One batch under its plan.

Read top to bottom, this file is the story of a batch::

    plan = schedule.plan(step)                  # or backprop, where the guard has broken off a GP phase
    switch off what the plan does not need      # autograd itself, or requires_grad of single parameters
    output = model(inputs)                      # sources see the sites' forward calls
    batch.backward(loss)                        # differentiate (autograd where some site needs it), then
                                                # complete: sources learn from the truth and give the other gradients
    batch.step()                                # the user's own optimizer
    advance                                     # to the next step

Within a batch each weight is used with one value, so collecting all gradients and stepping the optimizer once after the
forward pass gives the same weights as updating each layer as soon as its output is known, and works with any optimizer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adagp.engine.batch import Batch, BatchResult, TrainingSetup
from adagp.engine.guard import Guard
from adagp.engine.hooks import ModelHooks
from adagp.engine.quality import QualityMeter
from adagp.engine.switches import only_needed_gradients
from adagp.errors import UsageError
from adagp.plan import BACKPROP_ALL, Phase, Plan, Step
from adagp.schedules.base import Schedule
from adagp.sites import Survey
from adagp.sources.base import Source
from adagp.sources.support.norms import RunningNorms

LossFunction = Callable[[Any, Any], Tensor]


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
        batches: int | None = None,
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
        self.batches = batches
        self.norms = RunningNorms(survey.sites)
        learners = [name for name, source in self.sources.items() if source.learns]
        self.quality = QualityMeter(survey.sites, metrics_every, learners)
        self.setup = TrainingSetup(
            survey,
            optimizer,
            scaler or torch.amp.GradScaler(enabled=False),
            self.sources,
            ModelHooks(model, survey.sites),
            guard,
            self.norms,
            self.quality,
            self.device,
            schedule.adapts,
        )
        self._at = Step(0, 0)
        self._broken_off = False
        for source in self.sources.values():
            source.bind(survey.sites, self.norms)

    @property
    def at(self) -> Step:
        """The place of the coming batch in the run."""
        return self._at

    def move_to(self, step: Step) -> None:
        """Continue with the batch at `step`."""
        self._at = step

    @property
    def plan(self) -> Plan:
        """The plan of the coming batch."""
        return BACKPROP_ALL if self._broken_off else self.schedule.plan(self.at)

    @property
    def done(self) -> int:
        """The batches trained so far, in all epochs."""
        done = self.at.epoch * self.batches_per_epoch + self.at.batch
        return done if self.batches is None else min(done, self.batches)

    def epoch_length(self, epoch: int) -> int:
        """Return the batches of `epoch`: the last one of a run that is measured in batches may be short."""
        whole = self.batches_per_epoch
        return whole if self.batches is None else min(whole, self.batches - epoch * whole)

    @property
    def phase(self) -> Phase:
        """The phase of the coming batch."""
        return self.plan.phase

    def step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> BatchResult:
        """Train on one batch. A tuple of inputs is passed to the model as separate arguments."""
        with self.batch(targets) as batch:
            if batch.skipped:
                return BatchResult(batch.phase, torch.full((), torch.nan), None, guarded=False, skipped=True)
            output = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
            loss = loss_fn(output, targets)
            batch.backward(loss)
            batch.step()
        return BatchResult(batch.phase, loss.detach(), output, batch.guarded)

    @contextmanager
    def batch(self, targets: Any = None) -> Iterator[Batch]:
        """Prepare model and autograd for the coming batch; put all back and move on to the next one at the end.

        `targets` are for sources that look at them. If the body raises, model and trainer are as before the batch, but for
        weights that `Batch.step` changed.
        """
        batch = Batch(self.setup, self.plan, self.at, targets)
        self._refuse_left_gradients()
        try:
            if not batch.skipped:
                for source in self.sources.values():
                    source.begin(batch.context)
            needed = only_needed_gradients(batch.idle, backward=batch.needs_backward, loss=batch.needs_loss)
            with self.setup.hooks.active(batch.listeners), needed:
                yield batch
            batch.refuse_unfinished()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            for source in self.sources.values():
                source.forget()
        if self.schedule.adapts:
            self.schedule.observe(batch.report)
        self.advance(guarded=batch.guarded)

    def advance(self, *, guarded: bool = False) -> None:
        """Move on to the next batch; `guarded` says that the guard refused this one."""
        last = self.at.batch + 1 == self.epoch_length(self.at.epoch)
        self.move_to(Step(self.at.epoch + 1, 0) if last else Step(self.at.epoch, self.at.batch + 1))
        if last:
            for source in self.sources.values():
                source.end_epoch()
        # A guarded phase lasts until the schedule itself leaves it, or the epoch ends.
        still = not last and self.schedule.plan(self.at).phase is Phase.GP
        self._broken_off = still and (self._broken_off or guarded)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def detach(self) -> None:
        """Take the hooks off the model. The trainer cannot be used after that; the model is the user's as before."""
        self.setup.hooks.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return all of the trainer's own state: not the model's, not the optimizer's."""
        return {
            "epoch": self.at.epoch,
            "batch": self.at.batch,
            "broken_off": self._broken_off,
            "norms": self.norms.state_dict(),
            "quality": self.quality.state_dict(),
            "schedule": self.schedule.state_dict(),
            "sources": {name: source.state_dict() for name, source in self.sources.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.move_to(Step(state["epoch"], state["batch"]))
        self._broken_off = state["broken_off"]
        self.norms.load_state_dict(state["norms"])
        self.quality.load_state_dict(state["quality"])
        self.schedule.load_state_dict(state["schedule"])
        for name, source in self.sources.items():
            source.load_state_dict(state["sources"][name])

    def _refuse_left_gradients(self) -> None:
        if any(parameter.grad is not None for group in self.optimizer.param_groups for parameter in group["params"]):
            raise UsageError(
                "parameters still have gradients from before this batch. adagp cannot accumulate gradients across "
                "batches, as a GP batch has none to add to: accumulate inside one batch with "
                "batch.backward(loss, more=True), or call optimizer.zero_grad(set_to_none=True) first."
            )
