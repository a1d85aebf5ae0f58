"""One batch in progress. `adagp.engine.trainer` describes the whole sequence that it is part of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.engine.guard import Guard
from adagp.engine.hooks import Listeners, ModelHooks
from adagp.engine.quality import QualityMeter, agreement
from adagp.errors import UsageError
from adagp.plan import BACKPROP, Phase, Plan, Step
from adagp.predictor.layout import gradient_norms
from adagp.schedules.base import Report
from adagp.sites import Site, Survey
from adagp.sources.base import BatchContext, Source
from adagp.sources.support.norms import RunningNorms


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


@dataclass(frozen=True)
class TrainingSetup:
    """What all batches of a run share. `adapts` says that the schedule wants predictions measured in every BP batch."""

    survey: Survey
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    sources: Mapping[str, Source]
    hooks: ModelHooks
    guard: Guard
    norms: RunningNorms
    quality: QualityMeter
    device: torch.device
    adapts: bool

    @property
    def learners(self) -> list[Source]:
        """The sources that learn from BP batches."""
        return [source for source in self.sources.values() if source.learns]


class Batch:
    """One batch in progress: ask for its `phase`, run the forward, call `backward`, then `step`.

    If it is `skipped`, do nothing: such a batch is not to be trained on. A process that holds part of the model gives its
    own `sites`, and may call the two halves of `backward` by themselves: `differentiate` and `complete`.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        plan: Plan,
        step: Step,
        targets: Any = None,
        sites: Sequence[Site] | None = None,
    ) -> None:
        self._setup = setup
        self.plan = plan
        self.phase = plan.phase
        self.guarded = False
        self.loss: Tensor | None = None
        self._error_seen = False
        self._has_gradients = False
        self._stepped = False
        self._agreement: tuple[float, float] | None = None
        named = {site.name: site for site in (setup.survey.sites if sites is None else sites)}
        groups = {name: [named[site] for site in members] for name, members in plan.sources(named).items()}
        self._by_backprop = groups.pop(BACKPROP, [])
        self._served = groups
        self._serving = [setup.sources[name] for name in groups]
        self._learners = setup.learners if self._by_backprop else []
        self.skipped = any(source.skips for source in self._serving)
        self.context = self._context(step, targets)

    @property
    def needs_backward(self) -> bool:
        """Whether this batch has a backward pass."""
        if self._by_backprop or any(source.needs_backward for source in self._serving):
            return True
        return any(not self.plan.holds(one.name) for one in self._setup.survey.rest)

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is differentiated, be it only down to the model's output."""
        return self.needs_backward or any(source.needs_error for source in self._serving)

    @property
    def listeners(self) -> Listeners:
        """The sources that see each site (the one that serves it, or those that learn from it), and the error."""
        served = {site: [self._setup.sources[name]] for name, sites in self._served.items() for site in sites}
        wanted = any(source.needs_error for source in (*self._serving, *self._learners))
        return Listeners(
            served | dict.fromkeys(self._by_backprop, self._learners),
            on_error=self._pass_error if wanted and self.needs_loss else None,
            error_only=not self.needs_backward,
        )

    @property
    def idle(self) -> list[nn.Parameter]:
        """The parameters for which autograd computes nothing."""
        replaced = [site.weight for sites in self._served.values() for site in sites]
        return replaced + [one.parameter for one in self._setup.survey.rest if self.plan.holds(one.name)]

    @property
    def report(self) -> Report:
        """What a schedule that adapts may know of the batch, once it is over."""
        cosine, norm_ratio = self._agreement or (None, None)
        loss = None if self.loss is None else self.loss.item()
        return Report(self.context.step, self.phase, loss, cosine, norm_ratio, self.guarded)

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
        self.differentiate(loss)
        if not more:
            self.complete()

    def differentiate(self, loss: Tensor | None) -> None:
        """Run autograd, if this batch needs it: to the parameters that need it, or to the model's output alone."""
        if loss is not None:
            self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        if self.skipped or not self.needs_loss:
            return
        if loss is None:
            raise UsageError(f"a {self.phase.upper()} batch needs the loss: call backward(loss).")
        self._error_seen = False
        wanting = [name for name in self._served if self._setup.sources[name].needs_error]
        if loss.requires_grad or not wanting:
            with self._setup.hooks.suspended():
                self._setup.scaler.scale(loss).backward()
        if wanting and not self._error_seen:
            raise UsageError(
                f"source '{wanting[0]}' needs the error at the model's output, but none reached it: call the model "
                "itself (not parts of it), and compute the loss from what it returns."
            )

    def complete(self, agree: Callable[[bool], bool] = bool) -> None:
        """After the last `differentiate`: let sources learn from the true gradients, and put the others in place.

        `agree` makes one decision of all processes out of this one's: whether the true gradients are finite.
        """
        self._has_gradients = True
        if self.needs_backward:
            self._setup.scaler.unscale_(self._setup.optimizer)
        with self._setup.hooks.suspended(), torch.autocast(self._setup.device.type, enabled=False):
            self._learn(agree)
            self._take()

    def step(self) -> None:
        """Step the user's optimizer, unless the batch is skipped or the guard refused it."""
        if not self._has_gradients:
            raise UsageError("step() was called before backward().")
        if self._stepped:
            raise UsageError("step() was called twice in one batch.")
        self._stepped = True
        if self.skipped:
            return
        setup, scaled = self._setup, self.needs_backward  # without a backward pass nothing was scaled
        if not self.guarded and scaled:
            setup.scaler.step(setup.optimizer)
        elif not self.guarded:
            setup.optimizer.step()
        if scaled:
            setup.scaler.update()  # after a refusal too: an overflow is one of the things that the guard refuses

    def refuse_unfinished(self) -> None:
        """Raise if the body of the batch left out one of its two calls."""
        if not self._stepped and not self.skipped:
            missing = "step()" if self._has_gradients else "backward() and step()"
            raise UsageError(
                f"the batch ended without {missing}. One batch() is one step of the optimizer; "
                "to accumulate gradients, call backward(loss, more=True) several times inside it."
            )

    def _context(self, step: Step, targets: Any) -> BatchContext:
        """Return what the sources may know of this batch, or refuse it where that is not enough."""
        setup = self._setup
        if targets is None and not self.skipped:
            for name, source in setup.sources.items():
                if source.needs_targets and (name in self._served or source in self._learners):
                    raise UsageError(f"source '{name}' looks at the targets: call trainer.batch(targets=...).")
        return BatchContext(
            step,
            replaced=frozenset(site for sites in self._served.values() for site in sites),
            targets=targets,
            scale=setup.scaler.get_scale() if self.needs_loss else 1.0,
            measured=bool(self._learners) and (setup.adapts or setup.quality.due()),
        )

    def _pass_error(self, error: Tensor) -> None:
        self._error_seen = True
        for source in (*self._serving, *self._learners):
            if source.needs_error:
                source.observe_error(error / self.context.scale)

    def _learn(self, agree: Callable[[bool], bool]) -> None:
        """Show the true gradients to the norms, the metrics and the sources that learn."""
        setup = self._setup
        sites = [site for site in self._by_backprop if site.weight.grad is not None]
        truths = [site.weight.grad for site in sites if site.weight.grad is not None]
        if not sites or not self._learners:
            return
        norms = gradient_norms(truths)
        if not agree(bool(norms.isfinite().all())):
            return  # nothing to be learned from an overflow
        setup.norms.update(sites, norms)
        predictions = [source.produce(sites) for source in self._learners] if self.context.measured else []
        if setup.adapts:
            self._agreement = agreement(truths, predictions[0])  # a schedule that adapts has one source
        setup.quality.record(sites, truths, predictions)
        for source in self._learners:
            source.observe(sites, truths)

    def _take(self) -> None:
        """Ask the sources for the other gradients and, if the guard allows them, put them in place."""
        setup = self._setup
        pairs: list[tuple[Site, Tensor]] = []
        sizes: list[Tensor] = []
        for name, sites in self._served.items():
            source = setup.sources[name]
            given = [(site, one) for site, one in zip(sites, source.produce(sites), strict=True) if one is not None]
            pairs += given
            if given:
                sizes.append(source.sizes([one for _, one in given]))
        if not pairs:
            return
        self.guarded = not setup.guard.allows([site for site, _ in pairs], torch.cat(sizes), setup.norms)
        if self.guarded:
            setup.optimizer.zero_grad(set_to_none=True)
            return
        for site, gradient in pairs:
            site.weight.grad = gradient
