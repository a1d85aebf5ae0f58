"""One batch in progress. `adagp.engine.trainer` describes the whole sequence that it is part of."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.plan import BACKPROP, Phase, Plan, Step
from adagp.engine.arithmetic import Arithmetic
from adagp.engine.distributed import Processes
from adagp.engine.guard import Guard, Reach, Refusals
from adagp.engine.hooks import Listeners, ModelHooks, OutputErrors
from adagp.engine.metrics import DensityMeter, QualityMeter, agreement
from adagp.engine.weight_update import WeightUpdateHook
from adagp.errors import UsageError
from adagp.layers.sites import Site, Survey
from adagp.layers.weights import gradient_norms, laid_like, norms, whole
from adagp.schedules.base import Report
from adagp.sources.base import BatchContext, Rounds, RunningNorms, Source, all_receive


@dataclass(frozen=True)
class TrainingSetup:
    """What all batches of a run share. `adapts` says that the schedule wants predictions measured in every BP batch.

    `weight_hooks` are called after each step of the optimizers; `densities` are measured where there are some.
    """

    model: nn.Module
    survey: Survey
    optimizers: tuple[torch.optim.Optimizer, ...]
    scaler: torch.amp.GradScaler
    sources: Mapping[str, Source]
    hooks: ModelHooks
    guard: Guard
    refusals: Refusals
    reach: Reach
    norms: RunningNorms
    quality: QualityMeter
    processes: Processes
    device: torch.device
    adapts: bool
    arithmetic: Arithmetic | None = None
    weight_hooks: tuple[WeightUpdateHook, ...] = ()
    densities: DensityMeter | None = None

    @property
    def learners(self) -> list[Source]:
        """The sources that learn from BP batches."""
        return [source for source in self.sources.values() if source.learns]

    @contextmanager
    def beside_training(self) -> Iterator[None]:
        """Let nobody watch the model inside the context, and leave its arithmetic alone."""
        with ExitStack() as stack:
            stack.enter_context(self.hooks.suspended())
            if self.arithmetic is not None:
                stack.enter_context(self.arithmetic.paused())
            yield

    def foreign(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizers have and the model has not: of a loss, for instance."""
        own = {id(one) for one in self.model.parameters()}
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return [one for group in groups for one in group["params"] if id(one) not in own]

    def drop_gradients(self) -> None:
        """Take all gradients away."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)


class IdleParameters:
    """Parameters for which autograd computes nothing, because `requires_grad` is switched off while a batch runs.

    Autograd builds no graph below the lowest parameter that needs a gradient: none at all, where all are idle. Whether it is
    enabled is left to the user: gradients of inputs, or of another model, are taken as ever. Parameters that the user has
    frozen stay so.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [one for one in parameters if one.requires_grad]
        self._held = False

    def __len__(self) -> int:
        return len(self._parameters)

    def hold(self) -> None:
        """Switch their gradients off."""
        for one in self._parameters:
            one.requires_grad_(False)
        self._held = True

    def release(self) -> None:
        """Switch them on again, if they are off."""
        if self._held:
            for one in self._parameters:
                one.requires_grad_(True)
        self._held = False

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let them be as the user has them inside the context."""
        held = self._held
        self.release()
        try:
            yield
        finally:
            if held:
                self.hold()


@dataclass(frozen=True)
class BatchResult:
    """What `Trainer.step` did: the phase, the loss before the update, the model's output, and whether the guard refused all.

    A skipped batch was not run: its output is None and its loss NaN.
    """

    phase: Phase
    loss: Tensor
    output: Any
    guarded: bool
    skipped: bool = False


class Batch:
    """One batch in progress: ask for its `phase`, run the forward, call `backward`, then `step`.

    If it is `skipped`, do nothing: such a batch is not to be trained on. Where somebody else steps the optimizer, `finish`
    takes the place of `step`. `abandon` gives a batch up. `refused` names the sites whose gradient the guard refused: they
    are held; `guarded` says that it refused all there was. A process that holds part of the model gives its own `sites`,
    and may call the two halves of `backward` by themselves: `differentiate` and `complete`.
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
        self.refused: tuple[str, ...] = ()
        self.loss: Tensor | None = None
        self.abandoned = False
        self.on_end: Callable[[], None] = lambda: None
        self._called: dict[Site, bool] = dict.fromkeys(sites or (), True)
        self._scaled: list[torch.optim.Optimizer] = []
        self._has_gradients = False
        self._stepped = False
        self._agreement: tuple[float, float] | None = None
        named = {site.name: site for site in (setup.survey.sites if sites is None else sites)}
        groups = {
            name: [named[site] for site in members if named[site].weight.requires_grad]  # the user may have frozen some
            for name, members in plan.sources(named).items()
        }
        self._by_backprop = groups.pop(BACKPROP, [])
        self._served = groups
        self._serving = [setup.sources[name] for name in groups]
        self._learners = setup.learners if self._by_backprop else []
        self.skipped = any(source.skips for source in self._serving)
        self.context = self._context(step, targets)
        self._errors = self._output_errors()
        self.idle = IdleParameters(self._idle())

    @property
    def needs_backward(self) -> bool:
        """Whether this batch has a backward pass."""
        if self._by_backprop or not self._served or any(source.needs_backward for source in self._serving):
            return True
        return any(not self.plan.holds(one.name) for one in self._setup.survey.rest)

    @property
    def backward_is_whole(self) -> bool:
        """Whether there is a backward pass that brings every parameter its gradient."""
        return self.needs_backward and not self.idle

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is differentiated, be it only down to the model's output."""
        return self.needs_backward or any(source.needs_error for source in self._serving)

    @property
    def listeners(self) -> Listeners:
        """The sources that see each site (the one that serves it, or those that learn from it), and the errors."""
        served = {site: [self._setup.sources[name]] for name, sites in self._served.items() for site in sites}
        wanted = self._errors.wanted
        densities = self._setup.densities
        return Listeners(
            served | dict.fromkeys(self._by_backprop, self._learners),
            called=self._called,
            on_call=self._errors.enter if wanted and self.needs_loss else None,
            on_return=self._errors.leave if wanted and self.needs_backward else None,
            taps=None if self.needs_backward else self._errors.taps,
            on_inputs=None if densities is None or not densities.due() else densities.watch,
        )

    @property
    def called(self) -> frozenset[str]:
        """The names of the sites that were called so far."""
        return frozenset(site.name for site in self._called)

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

    def see_targets(self, targets: Any) -> None:
        """Show the targets of the coming micro-batch to sources that look at them, where each comes with its own."""
        for source in (*self._serving, *self._learners):
            if source.needs_targets:
                source.see_targets(targets)

    def differentiate(self, loss: Tensor | None) -> None:
        """Run autograd, if this batch needs it: to the parameters that need it, or to the model's outputs alone."""
        if loss is not None:
            self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        if self.skipped or not self.needs_loss:
            return
        if loss is None:
            raise UsageError(f"a {self.phase.upper()} batch needs the loss: call backward(loss).")
        if self._setup.arithmetic is not None:
            self._setup.arithmetic.check_called(self._called)
        scaled = self._setup.scaler.scale(loss)
        with self._setup.hooks.suspended(), all_receive():
            if self.needs_backward:
                if loss.requires_grad or self._by_backprop:  # else nothing was called that a source could serve
                    scaled.backward()
            else:
                self._errors.differentiate(scaled)
        if self._errors.wanted:
            self._errors.hand_over()

    def complete(self, agree: Callable[[bool], bool] = bool) -> None:
        """After the last `differentiate`: let sources learn from the true gradients, and put the others in place.

        `agree` makes one decision of all processes out of this one's: whether the true gradients are finite.
        """
        self._has_gradients = True
        if self._setup.processes.several and not self.skipped:
            self._end_passes()
        if self.needs_backward and self._setup.scaler.is_enabled():
            self._scaled = [one for one in self._setup.optimizers if _has_gradient(one)]
            for optimizer in self._scaled:
                self._setup.scaler.unscale_(optimizer)
        self.idle.release()  # before sources look at the weights, or the user clips what requires a gradient
        with self._setup.beside_training(), torch.autocast(self._setup.device.type, enabled=False):
            if not self.skipped:
                if self._setup.processes.several and self._setup.sources:
                    self._exchange()
                self._learn(agree)
                with torch.set_grad_enabled(self.needs_loss):
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
        if self.guarded:
            return
        for optimizer in self._setup.optimizers:
            if optimizer in self._scaled:
                self._setup.scaler.step(optimizer)
            else:  # without a backward pass nothing was scaled
                optimizer.step()
        if self._scaled:
            self._setup.scaler.update()
        self._call_weight_hooks()

    def finish(self, stepped: bool = True) -> None:
        """End the batch: the trainer moves on to the next one. The optimizers were stepped by somebody else if not here.

        `stepped=False` says that they were not: the batch has taught the sources, and that is all.
        """
        if not (self._has_gradients or self.skipped or self.abandoned):
            raise UsageError("finish() was called before backward().")
        if stepped and not (self._stepped or self.skipped or self.guarded or self.abandoned):
            self._call_weight_hooks()
        self._stepped = self._stepped or stepped
        self.on_end()

    def abandon(self) -> None:
        """Give the batch up, as after a loss that is not finite: no gradients are left, nobody learns from it, and the
        trainer moves on to the next one."""
        self.abandoned = True
        self.idle.release()
        self._setup.drop_gradients()
        self.on_end()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the model be the user's own inside the context: nobody watches, and all gradients can be taken."""
        with self._setup.beside_training(), self.idle.released():
            yield

    def refuse_unfinished(self) -> None:
        """Raise if the body of the batch left out one of its two calls."""
        if not self._stepped and not self.skipped and not self.abandoned:
            missing = "step()" if self._has_gradients else "backward() and step()"
            raise UsageError(
                f"the batch ended without {missing}. One batch() is one step of the optimizer; "
                "to accumulate gradients, call backward(loss, more=True) several times inside it."
            )

    def _call_weight_hooks(self) -> None:
        for hook in self._setup.weight_hooks:
            hook.after_step(self.context.step)

    def _context(self, step: Step, targets: Any) -> BatchContext:
        """Return what the sources may know of this batch, or refuse it where that is not enough."""
        setup = self._setup
        if targets is None and not self.skipped:
            for name, source in setup.sources.items():
                if source.needs_targets and self._takes_part(source):
                    raise UsageError(f"source '{name}' looks at the targets: call trainer.batch(targets=...).")
        return BatchContext(
            step,
            replaced=frozenset(site for sites in self._served.values() for site in sites),
            targets=targets,
            scale=setup.scaler.get_scale() if self.needs_loss else 1.0,
            measured=bool(self._learners) and (setup.adapts or setup.quality.due()),
            several=setup.processes.several,
        )

    def _output_errors(self) -> OutputErrors:
        wanting = {name: one for name, one in self._setup.sources.items() if one.needs_error and self._takes_part(one)}
        learning = [source for source in self._learners if source.needs_error]
        return OutputErrors(wanting, learning, self.context.scale)

    def _takes_part(self, source: Source) -> bool:
        return source in self._serving or source in self._learners

    def _idle(self) -> list[nn.Parameter]:
        """Return the parameters for which autograd computes nothing: all of them, where there is no backward pass."""
        if self.skipped:
            return []
        if not self.needs_backward:
            return list(self._setup.model.parameters())
        replaced = [site.weight for sites in self._served.values() for site in sites]
        if self._served and self.plan.hold_rest:
            replaced += self._setup.foreign()
        return replaced + [one.parameter for one in self._setup.survey.rest if self.plan.holds(one.name)]

    def _end_passes(self) -> None:
        """After the passes of one of several processes: average what DDP has not, and put back what FSDP2 has gathered."""
        if not self.needs_backward:
            self._setup.processes.end_forward()
        elif not self.backward_is_whole:
            moving = (one for one in self._setup.model.parameters() if one.requires_grad)
            self._setup.processes.average_gradients(moving)

    def _exchange(self) -> None:
        """Let all processes know what each has seen of the batch."""
        watched = {
            source: self._by_backprop if source in self._learners else [] for source in self._setup.sources.values()
        }
        for name, sites in self._served.items():
            watched[self._setup.sources[name]] = [*watched[self._setup.sources[name]], *sites]
        exchanges = [source.join(sites) for source, sites in watched.items() if sites]
        with torch.no_grad():
            self._setup.processes.join([self._agree_on_calls(), *exchanges])

    def _agree_on_calls(self) -> Rounds:
        """Count a site as called where it was in any process; let the loss be that of the whole batch, if a schedule asks."""
        sites, device = self._setup.survey.sites, self._setup.device
        counts = torch.tensor([*(float(site in self._called) for site in sites), 1.0], device=device)
        losses = [self.loss.float().clone()] if self._setup.adapts and self.loss is not None else []
        yield [counts, *losses]
        *found, size = counts.tolist()
        self._called.update({site: True for site, count in zip(sites, found, strict=True) if count})
        if losses:
            self.loss = losses[0] / size

    def _learn(self, agree: Callable[[bool], bool]) -> None:
        """Show the true gradients to the norms, the metrics and the sources that learn."""
        setup = self._setup
        if self._by_backprop and setup.sources:
            setup.reach.note(self._by_backprop, self._called)
        sites = [site for site in self._by_backprop if site.weight.grad is not None]
        truths = [site.weight.grad for site in sites if site.weight.grad is not None]
        if not sites or not self._learners:
            return
        sizes = norms(truths)
        if not agree(bool(sizes.isfinite().all())):
            return  # nothing to be learned from an overflow
        setup.norms.update(sites, sizes)
        predictions = [source.produce(sites) for source in self._learners] if self.context.measured else []
        if setup.adapts:
            self._agreement = agreement(truths, predictions[0])  # a schedule that adapts has one source
        setup.quality.record(sites, truths, predictions)
        for source in self._learners:
            source.observe(sites, truths if source.takes_spread else [whole(one) for one in truths])

    def _take(self) -> None:
        """Ask the sources for the other gradients and, if the guard allows them, put them in place."""
        setup = self._setup
        pairs: list[tuple[Site, Tensor]] = []
        sizes: list[Tensor] = []
        for name, sites in self._served.items():
            source = setup.sources[name]
            mine = setup.reach.served(sites, self._called)
            given = source.produce(mine)
            alone = setup.processes.several and not source.joins
            if alone:
                given = setup.processes.average([site.weight for site in mine], given)
            found = [(site, one) for site, one in zip(mine, given, strict=True) if one is not None]
            if found:
                gradients = [one for _, one in found]
                sizes.append(gradient_norms(gradients) if alone else source.sizes(gradients))
            pairs += found
        if not pairs:
            self._refuse_silence()
            return
        sites = [site for site, _ in pairs]
        allowed = setup.guard.allowed(sites, torch.cat(sizes), setup.norms)
        setup.refusals.note(sites, allowed)
        self.refused = tuple(site.name for site, may in zip(sites, allowed, strict=True) if not may)
        self.guarded = not any(allowed) and not self.needs_backward
        for (site, gradient), may in zip(pairs, allowed, strict=True):
            if may:
                place(site.weight, laid_like(gradient, site.weight) if site.is_spread else gradient)

    def _refuse_silence(self) -> None:
        if any(self._served.values()) and not self._called:
            raise UsageError(
                f"no layer of the model was called in this {self.phase.upper()} batch, so that there is nothing to train on. "
                "Was the model compiled and called before adagp.attach, or is another model in use?"
            )


def place(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Make `gradient` that of `parameter`, with the user's hooks on the parameter, as a backward pass would."""
    for hook in (getattr(parameter, "_backward_hooks", None) or {}).values():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    parameter.grad = gradient
    for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(parameter)


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
