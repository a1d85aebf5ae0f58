"""One batch in progress. The story it is part of is told in `adagp.engine.trainer`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from adagp.engine.hooks import Audience
from adagp.engine.quality import agreement
from adagp.errors import UsageError
from adagp.plan import BACKPROP, Phase, Plan
from adagp.predictor.layout import gradient_norms
from adagp.schedules.base import Report
from adagp.sites import Site
from adagp.sources.base import Moment, Source

if TYPE_CHECKING:
    from adagp.engine.trainer import Trainer


@dataclass(frozen=True)
class BatchResult:
    """What `Trainer.step` did: the phase, the loss before the update, the model's output, and whether the guard refused.

    A skipped batch was not run: its output is None and its loss NaN.
    """

    phase: Phase
    loss: Tensor
    output: Any
    guarded: bool
    skipped: bool = False


class Batch:
    """One batch in progress: ask for its `phase`, run the forward, call `backward`, then `step`.

    If it is `skipped`, do nothing: such a batch is not to be trained on.
    """

    def __init__(self, trainer: "Trainer", plan: Plan, targets: Any = None) -> None:
        self._trainer = trainer
        self.plan = plan
        self.phase = plan.phase
        self.guarded = False
        self._loss: Tensor | None = None
        self._felt = False
        self._has_gradients = False
        self._stepped = False
        self._agreement: tuple[float, float] | None = None
        groups = plan.sources(site.name for site in trainer.survey.sites)
        by_name = trainer.sites_by_name
        self._by_backprop = [by_name[name] for name in groups.pop(BACKPROP, [])]
        self._elsewhere = {name: [by_name[site] for site in sites] for name, sites in groups.items()}
        self._serving = [trainer.sources[name] for name in self._elsewhere]
        self.skipped = any(source.skips for source in self._serving)
        self.moment = self._moment(targets)

    @property
    def needs_backward(self) -> bool:
        """Whether this batch has a backward pass."""
        if self._by_backprop or any(source.needs_backward for source in self._serving):
            return True
        return any(not self.plan.holds(one.name) for one in self._trainer.survey.rest)

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is differentiated, be it only down to the model's output."""
        return self.needs_backward or any(source.needs_error for source in self._serving)

    @property
    def audience(self) -> Audience:
        """The sources that want to see each site (the one that serves it, or those that learn from it), and the error."""
        trainer = self._trainer
        served = {site: [trainer.sources[name]] for name, sites in self._elsewhere.items() for site in sites}
        feeling = any(source.needs_error for source in self._present())
        return Audience(
            served | dict.fromkeys(self._by_backprop, trainer.learners),
            feel=self._feel if feeling and self.needs_loss else None,
            alone=not self.needs_backward,
        )

    @property
    def idle(self) -> list[nn.Parameter]:
        """The parameters for which autograd shall compute nothing."""
        replaced = [site.weight for sites in self._elsewhere.values() for site in sites]
        return replaced + [one.parameter for one in self._trainer.survey.rest if self.plan.holds(one.name)]

    @property
    def report(self) -> Report:
        """What a schedule that adapts may know of the batch, once it is over."""
        return Report(
            self.moment.step,
            self.phase,
            loss=None if self._loss is None else self._loss.item(),
            cosine=None if self._agreement is None else self._agreement[0],
            norm_ratio=None if self._agreement is None else self._agreement[1],
            guarded=self.guarded,
        )

    def backward(self, loss: Tensor | None = None, *, more: bool = False) -> None:
        """Give every weight of the plan its gradient, in `.grad`, ready for clipping and `step`.

        With backprop in the plan, or a source that wants the output's error, `loss` is needed; without, it is only noted.
        `more=True` says that another micro-batch of the same batch follows: gradients (or summaries of outputs, in GP)
        accumulate until a call without it.
        """
        if self._has_gradients:
            raise UsageError(
                "backward() was called again after the last micro-batch; pass more=True on all but the last."
            )
        trainer = self._trainer
        if loss is not None:
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if self.needs_loss and not self.skipped:
            if loss is None:
                raise UsageError(f"a {self.phase.upper()} batch needs the loss: call backward(loss).")
            self._differentiate(loss)
        if more:
            return
        self._has_gradients = True
        if self.needs_backward and trainer.scaler is not None:
            trainer.scaler.unscale_(trainer.optimizer)
        with trainer.watcher.asleep(), torch.autocast(trainer.device.type, enabled=False):
            self._learn()
            self._take()

    def step(self) -> None:
        """Step the user's optimizer, unless the batch is skipped or the guard refused it."""
        if not self._has_gradients:
            raise UsageError("step() was called before backward().")
        if self._stepped:
            raise UsageError("step() was called twice in one batch.")
        self._stepped = True
        scaler = self._trainer.scaler
        scaled = scaler is not None and self.needs_backward
        if self.guarded or self.skipped:
            if scaler is not None and scaled and not self.skipped:
                scaler.update()  # an overflow is one of the things that the guard refuses
            return
        if scaler is not None and scaled:
            scaler.step(self._trainer.optimizer)
            scaler.update()
        else:
            self._trainer.optimizer.step()

    def refuse_unfinished(self) -> None:
        """Raise if the body of the batch left out one of its two calls."""
        if not self._stepped and not self.skipped:
            missing = "step()" if self._has_gradients else "backward() and step()"
            raise UsageError(
                f"the batch ended without {missing}. One batch() is one step of the optimizer; "
                "to accumulate gradients, call backward(loss, more=True) several times inside it."
            )

    def _moment(self, targets: Any) -> Moment:
        """Return what the sources may know of this batch, or refuse it where that is not enough."""
        trainer = self._trainer
        if targets is None and not self.skipped:
            for name, source in trainer.sources.items():
                if source.needs_targets and source in self._present():
                    raise UsageError(f"source '{name}' looks at the targets: call trainer.batch(targets=...).")
        return Moment(
            trainer.at,
            replaced=frozenset(site for sites in self._elsewhere.values() for site in sites),
            targets=targets,
            scale=1.0 if trainer.scaler is None or not self.needs_loss else trainer.scaler.get_scale(),
            measured=bool(self._by_backprop and trainer.learners) and trainer.measures(),
        )

    def _present(self) -> list[Source]:
        """Return the sources that serve or learn in this batch."""
        return [*self._serving, *(self._trainer.learners if self._by_backprop else [])]

    def _differentiate(self, loss: Tensor) -> None:
        """Run autograd: to the parameters that need it, or to the model's output alone."""
        trainer = self._trainer
        self._felt = False
        wanting = [name for name in self._elsewhere if trainer.sources[name].needs_error]
        if loss.requires_grad or not wanting:
            with trainer.watcher.asleep():
                (loss if trainer.scaler is None else trainer.scaler.scale(loss)).backward()
        if wanting and not self._felt:
            raise UsageError(
                f"source '{wanting[0]}' needs the error at the model's output, but none reached it: call the model "
                "itself (not parts of it), and compute the loss from what it returns."
            )

    def _feel(self, error: Tensor) -> None:
        self._felt = True
        for source in self._present():
            if source.needs_error:
                source.feel(error / self.moment.scale)

    def _learn(self) -> None:
        """Show the true gradients to the norms, the metrics and the sources that learn."""
        trainer = self._trainer
        sites = [site for site in self._by_backprop if site.weight.grad is not None]
        truths = [site.weight.grad for site in sites if site.weight.grad is not None]
        if not sites or not trainer.learners:
            return
        norms = gradient_norms(truths)
        if not bool(norms.isfinite().all()):
            return  # nothing to be learned from an overflow
        trainer.norms.update(sites, norms)
        predictions = trainer.learners[0].produce(sites) if self.moment.measured else []
        if trainer.schedule.adapts:
            self._agreement = agreement(truths, predictions)
        trainer.quality.record(sites, truths, predictions)
        for source in trainer.learners:
            source.observe(sites, truths)

    def _take(self) -> None:
        """Ask the sources for the other gradients and, if the guard allows them, put them in place."""
        trainer = self._trainer
        pairs: list[tuple[Site, Tensor]] = []
        sizes: list[Tensor] = []
        for name, sites in self._elsewhere.items():
            source = trainer.sources[name]
            given = source.give(sites)
            pairs += given
            if given:
                sizes.append(source.sizes([one for _, one in given]))
        if not pairs:
            return
        self.guarded = not trainer.guard.allows([site for site, _ in pairs], torch.cat(sizes), trainer.norms)
        if self.guarded:
            trainer.optimizer.zero_grad(set_to_none=True)
            return
        for site, gradient in pairs:
            site.weight.grad = gradient
