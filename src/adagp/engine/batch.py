"""One batch in progress. `adagp.engine.trainer` describes the whole sequence of a batch."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from adagp.core.plan import Phase, Plan, Step
from adagp.engine.batch_plan import BatchPlan, FrozenParameters, TrainingSetup
from adagp.engine.guard import source_does_nothing
from adagp.engine.hooks import Listeners, OutputErrors
from adagp.engine.metrics import agreement
from adagp.errors import UsageError
from adagp.layers.sites import Site
from adagp.layers.weights import gradient_norms, norms, sharded_like, whole
from adagp.schedules.base import Report
from adagp.sources.base import BatchContext, Rounds, Source, gradient_hooks_on
from adagp.sources.local import recomputed


@dataclass(frozen=True)
class BatchResult:
    """The result of `Trainer.step`: the phase, the loss before the update, the model's output, and whether the guard rejected
    all gradients (`guarded`).

    A skipped batch was not run: its output is None and its loss NaN.
    """

    phase: Phase
    loss: Tensor
    output: Any
    guarded: bool
    skipped: bool = False


class Batch:
    """One batch in progress: look at its `phase`, run the forward pass, call `backward`, then `step`.

    If it is `skipped`, do nothing: such a batch is not trained on. If other code steps the optimizer, call `finish` instead of
    `step`. `abandon` discards a batch. `rejected` names the sites whose gradient the guard rejected: their weights are frozen
    in this batch. `guarded` is True if the guard rejected all gradients.

    In a pipeline, a process has only some sites of the model. It passes them as `sites`, and may call the two halves of
    `backward` separately: `differentiate` and `complete`.
    """

    def __init__(
        self, setup: TrainingSetup, plan: Plan, step: Step, targets: Any = None, sites: Sequence[Site] | None = None
    ) -> None:
        self._setup = setup
        self.plan = plan
        self.phase = plan.phase
        self.guarded = False
        self.rejected: tuple[str, ...] = ()
        self.loss: Tensor | None = None
        self.abandoned = False
        self.on_end: Callable[[], None] = lambda: None
        self._called: dict[Site, int] = dict.fromkeys(sites or (), 1)
        self._ignored: set[Site] = set()
        self._without_autograd: set[Site] = set()
        self._updates: list[Callable[[], None]] = []  # of sources and metrics; called when the optimizer steps
        self._rollbacks: list[Callable[[], None]] = []  # called if the batch is discarded
        self._scaled: list[torch.optim.Optimizer] = []
        self._has_gradients = False
        self._stepped = False
        self._agreement: tuple[float, float] | None = None
        self._work = BatchPlan(setup, plan, sites)
        self.skipped = self._work.skips
        self.context = self._context(step, targets)
        self._errors = self._output_errors()
        self.frozen = FrozenParameters(self._work.frozen_parameters())

    @property
    def refused(self) -> tuple[str, ...]:
        """The former name of `rejected`."""
        warnings.warn("Batch.refused is deprecated: use Batch.rejected.", DeprecationWarning, stacklevel=2)
        return self.rejected

    @property
    def needs_backward(self) -> bool:
        """Whether this batch has a backward pass."""
        return self._work.needs_backward

    @property
    def backward_is_whole(self) -> bool:
        """Whether a backward pass computes the gradient of every parameter."""
        return self.needs_backward and not self.frozen

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is differentiated, at least down to the model's output."""
        return self.needs_backward or any(source.needs_error for source in self._work.serving)

    @property
    def listeners(self) -> Listeners:
        """What the hooks call: for each site the source that serves it, or those that learn from it; and `OutputErrors`."""
        served = {site: [source] for site, source in self._work.served_sites.items()}
        needed = self._errors.are_needed
        densities = self._setup.densities
        return Listeners(
            served | dict.fromkeys(self._work.by_backprop, self._work.learners),
            called=self._called,
            ignored=self._ignored,
            without_autograd=self._without_autograd,
            on_call=self._errors.enter if needed and self.needs_loss else None,
            on_return=self._errors.leave if needed and self.needs_backward else None,
            error_leaves=None if self.needs_backward else self._errors.error_leaves,
            on_inputs=None if densities is None or not densities.due() else densities.watch,
        )

    @property
    def is_untouched(self) -> bool:
        """Whether `backward` has not been called yet."""
        return self.loss is None and not self._has_gradients

    @property
    def called(self) -> frozenset[str]:
        """The names of the sites that have been called so far."""
        return frozenset(site.name for site in self._called)

    @property
    def report(self) -> Report:
        """The report on the finished batch for an adaptive schedule."""
        cosine, norm_ratio = self._agreement or (None, None)
        loss = None if self.loss is None else self.loss.item()
        return Report(self.context.step, self.phase, loss, cosine, norm_ratio, self.guarded)

    @property
    def has_gradients(self) -> bool:
        """Whether the backward pass of the last micro-batch is over."""
        return self._has_gradients

    def parts(self, inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and targets of each part of the batch, for methods that split it: here, of the whole batch once."""
        yield inputs, targets

    def joined(self, outputs: Sequence[Any]) -> Any:
        """Return what the model returned for the `parts` as one: here, for the whole batch."""
        return outputs[0]

    def backward(self, loss: Tensor | None = None, *, more: bool = False) -> None:
        """Give every weight of the plan its gradient, in `.grad`, ready for clipping and `step`.

        `loss` is required if the plan has backprop or a source needs the error at the outputs; otherwise it is only recorded.
        Pass `more=True` if another micro-batch of the same batch follows: gradients (or summaries of outputs, in GP) accumulate
        until a call without it.
        """
        if self._has_gradients:
            raise UsageError(
                "backward() was called again after the last micro-batch; pass more=True on all but the last."
            )
        self.differentiate(loss)
        if not more:
            self.complete()

    def see_targets(self, targets: Any) -> None:
        """Pass the targets of the next micro-batch to the sources that need targets."""
        for source in self._work.in_use.values():
            if source.needs_targets:
                source.see_targets(targets)

    def differentiate(
        self, loss: Tensor | None, backward: Callable[[Tensor], object] = lambda scaled: scaled.backward()
    ) -> None:
        """Run autograd, if this batch needs it: down to the parameters that need it, or to the model's outputs alone."""
        if loss is not None:
            self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
            if not self.needs_backward:
                self._setup.graph.check_other_models(loss)
        if self.skipped or not self.needs_loss:
            return
        if loss is None:
            raise UsageError(f"a {self.phase.upper()} batch needs the loss: call backward(loss).")
        self._check_recorded()
        if self._setup.arithmetic is not None:
            self._setup.arithmetic.check_called(self._called)
        self._setup.graph.check(loss, self._called, self._work.by_backprop)
        with self._setup.hooks.suspended(), gradient_hooks_on():
            self._differentiate(loss, backward)
        if self._errors.are_needed:
            self._errors.hand_over()

    def _run_backward(self, backward: Callable[[], object]) -> None:
        try:
            backward()
        except CheckpointError as error:
            names = [name for name in self._work.served if self._setup.sources[name].needs_backward]
            if not names:
                raise
            raise UsageError(
                f"source '{names[0]}' hooks the outputs of its layers, so activation checkpointing cannot recompute what it "
                "saved. Leave these layers out of torch.utils.checkpoint, or use another method."
            ) from error

    def _differentiate(self, loss: Tensor, backward: Callable[[Tensor], object]) -> None:
        scaled = self._setup.scaler.scale(loss)
        if not self.needs_backward:
            self._errors.differentiate(scaled)
        elif loss.requires_grad or self._work.by_backprop:  # else nothing was called that a source could serve
            self._run_backward(partial(backward, scaled))

    def complete(self, agree: Callable[[bool], bool] = bool) -> None:
        """After the last `differentiate`: let sources learn from the true gradients, and produce the others.

        `agree` gets whether this process's true gradients are finite, and returns whether those of all processes are.
        """
        self._has_gradients = True
        if self._setup.processes.several and not self.skipped:
            self._end_passes()
        if self.needs_backward and self._setup.scaler.is_enabled():
            self._unscale()
        self.frozen.unfreeze()  # before sources look at the weights, or the user clips what requires a gradient
        with self._setup.outside_training(), torch.autocast(self._setup.device.type, enabled=False):
            if not self.skipped:
                if self._setup.processes.several and self._setup.sources:
                    self._exchange()
                self._learn(agree)
                with torch.set_grad_enabled(self.needs_loss):
                    self._take()

    def _unscale(self) -> None:
        self._scaled = [optimizer for optimizer in self._setup.optimizers if _has_gradient(optimizer)]
        for optimizer in self._scaled:
            self._setup.scaler.unscale_(optimizer)

    def step(self) -> None:
        """Step the user's optimizer, unless the batch is skipped or the guard rejected it."""
        if not self._has_gradients:
            raise UsageError("step() was called before backward().")
        if self._stepped:
            raise UsageError("step() was called twice in one batch.")
        self._stepped = True
        self._learn_now()
        if self.skipped or self.guarded:
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
        """End the batch, whose optimizers were stepped here or by other code: the trainer moves on to the next one.

        Pass `stepped=False` if they were not: the sources have learned from the batch, and that is all.
        """
        if not (self._has_gradients or self.skipped or self.abandoned):
            raise UsageError("finish() was called before backward().")
        self._learn_now()
        if stepped and not (self._stepped or self.skipped or self.guarded or self.abandoned):
            self._call_weight_hooks()
        self._stepped = self._stepped or stepped
        self.on_end()

    def abandon(self) -> None:
        """Discard the batch, as after a loss that is not finite: gradients are dropped, no source learns from it, and the
        trainer moves on to the next one."""
        self.abandoned = True
        self.discard()
        self.on_end()

    def discard(self) -> None:
        """Undo what this batch has done, except for steps of the optimizer."""
        self.frozen.unfreeze()
        self._updates.clear()
        for rollback in self._rollbacks:
            rollback()
        for source in self._setup.sources.values():
            source.discard()
        self._setup.drop_gradients()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the model's calls from all sources inside the context, and unfreeze its parameters."""
        with self._setup.outside_training(), self.frozen.unfrozen():
            yield

    def check_finished(self) -> None:
        """Raise if the body of the batch called `backward` or `step` too rarely: each is required once."""
        if not self._stepped and not self.skipped and not self.abandoned:
            if not self._has_gradients and self._has_foreign_gradients():
                raise own_backward()
            missing = "step()" if self._has_gradients else "backward() and step()"
            raise UsageError(
                f"the batch ended without {missing}. One batch() is one step of the optimizer; "
                "to accumulate gradients, call backward(loss, more=True) several times inside it."
            )

    def _has_foreign_gradients(self) -> bool:
        """Return whether a backward pass of the user's own has reached the parameters, or the outputs of a GP batch."""
        leaves = (leaf for _, _, leaf in self._errors.error_leaves if leaf.is_leaf)
        return any(tensor.grad is not None for tensor in (*self._setup.optimized_parameters(), *leaves))

    def _learn_now(self) -> None:
        """Apply what sources and metrics have prepared: the batch will not be discarded any more."""
        updates, self._updates = self._updates, []
        self._rollbacks = []
        with self._setup.outside_training(), torch.autocast(self._setup.device.type, enabled=False):
            for update in updates:
                update()
            for source in self._setup.sources.values():
                source.accept()

    def _call_weight_hooks(self) -> None:
        for hook in self._setup.weight_hooks:
            hook.after_step(self.context.step)

    def _context(self, step: Step, targets: Any) -> BatchContext:
        """Return the context of this batch for the sources; raise if targets are missing."""
        setup = self._setup
        if targets is None and not self.skipped:
            for name, source in self._work.in_use.items():
                if source.needs_targets:
                    raise UsageError(f"source '{name}' needs the targets: call trainer.batch(targets=...).")
        return BatchContext(
            step,
            replaced=frozenset(self._work.served_sites),
            targets=targets,
            scale=setup.scaler.get_scale() if self.needs_loss else 1.0,
            measured=bool(self._work.learners) and self._is_measured(),
            several=setup.processes.several,
        )

    def _is_measured(self) -> bool:
        return self._setup.adapts or self._setup.quality.due() or any(source.measures for source in self._work.learners)

    def _output_errors(self) -> OutputErrors:
        wanting = {name: source for name, source in self._work.in_use.items() if source.needs_error}
        learning = [source for source in self._work.learners if source.needs_error]
        return OutputErrors(wanting, learning, self.context.scale)

    def _end_passes(self) -> None:
        """In a run of several processes: average the gradients that DDP has not averaged, and reshard for FSDP2."""
        if not self.needs_backward:
            self._setup.processes.end_forward()
        elif not self.backward_is_whole:
            trained = (parameter for parameter in self._setup.model.parameters() if parameter.requires_grad)
            self._setup.processes.average_gradients(trained)

    def _exchange(self) -> None:
        """Sum over the processes what their sources have seen of the batch."""
        with torch.no_grad():
            self._setup.processes.join([self._agree_on_calls(), *self._work.exchanges()])

    def _agree_on_calls(self) -> Rounds:
        """Count a site as called if any process called it; for adaptive schedules, average the loss."""
        sites, device = self._setup.survey.sites, self._setup.device
        counts = torch.tensor([*(float(site in self._called) for site in sites), 1.0], device=device)
        losses = [self.loss.float().clone()] if self._setup.adapts and self.loss is not None else []
        yield [counts, *losses]
        *calls, size = counts.tolist()
        self._called.update({site: True for site, count in zip(sites, calls, strict=True) if count})
        if losses:
            self.loss = losses[0] / size

    def _learn(self, agree: Callable[[bool], bool]) -> None:
        """Pass the true gradients to the running norms, the metrics and the sources that learn.

        Metrics and sources only prepare: their updates are applied when the optimizer steps.
        """
        setup = self._setup
        if self._work.by_backprop and setup.sources:
            self._updates.append(setup.coverage.prepare_record(self._work.by_backprop, self._called))
        gradients = {site: site.weight.grad for site in self._work.by_backprop}
        sites = [site for site, gradient in gradients.items() if gradient is not None]
        truths = [gradient for gradient in gradients.values() if gradient is not None]
        if sites and self._work.learners:
            self._learn_from(sites, truths, agree)

    def _learn_from(self, sites: Sequence[Site], truths: Sequence[Tensor], agree: Callable[[bool], bool]) -> None:
        setup = self._setup
        sizes = norms(truths)
        if not agree(bool(sizes.isfinite().all())):
            return  # nothing to be learned from an overflow
        self._rollbacks.append(setup.norms.rollback())
        setup.norms.update(sites, sizes)
        predictions = self._predict(sites)
        if setup.adapts:
            self._agreement = agreement(truths, predictions[0])  # a schedule that adapts has one source
        self._updates.append(setup.quality.prepare_record(sites, truths, predictions))
        for source in self._work.learners:
            visible = truths if source.takes_sharded else [whole(truth) for truth in truths]
            self._updates.append(source.prepare_learning(sites, visible))

    def _predict(self, sites: Sequence[Site]) -> list[list[Tensor | None]]:
        """Return each learner's predictions for sites trained by backprop; an empty list in a batch that is not measured."""
        return [source.produce(sites) for source in self._work.learners] if self.context.measured else []

    def _take(self) -> None:
        """Let the sources produce the other gradients, and put those that pass the guard into `.grad`."""
        setup = self._setup
        produced = {name: self._produce(setup.sources[name], sites) for name, sites in self._work.served.items()}
        pairs = [pair for served, _ in produced.values() for pair in served]
        if not pairs:
            self._check_called()
            return
        sites = [site for site, _ in pairs]
        norms = torch.cat([sizes for served, sizes in produced.values() if served])
        allowed, empty = setup.guard.judge(sites, norms, setup.norms)
        self._check_acting({name: len(served) for name, (served, _) in produced.items()}, empty)
        self._note_rejected(sites, allowed)
        self.guarded = not any(allowed) and not self.needs_backward
        for site, gradient in compress(pairs, allowed):
            assign_gradient(site.weight, sharded_like(gradient, site.weight))

    def _note_rejected(self, sites: Sequence[Site], allowed: Sequence[bool]) -> None:
        self._updates.append(partial(self._setup.rejections.note, sites, allowed))
        self.rejected = tuple(site.name for site, may in zip(sites, allowed, strict=True) if not may)

    def _produce(self, source: Source, sites: Sequence[Site]) -> tuple[list[tuple[Site, Tensor]], Tensor]:
        setup = self._setup
        servable = setup.coverage.servable(sites, self._called)
        gradients = source.produce(servable)
        if source.needs_backward:
            self._check_not_recomputed(servable, gradients)
        averaged = setup.processes.several and not source.joins
        if averaged:
            gradients = setup.processes.average([site.weight for site in servable], gradients)
        pairs = [(site, gradient) for site, gradient in zip(servable, gradients, strict=True) if gradient is not None]
        present = [gradient for _, gradient in pairs]
        if not present:
            return pairs, torch.empty(0)
        # A source may have the norms of its gradients already, but not those of their mean over processes.
        return pairs, gradient_norms(present) if averaged else source.sizes(present)

    def _check_not_recomputed(self, sites: Sequence[Site], gradients: Sequence[Tensor | None]) -> None:
        for site, gradient in zip(sites, gradients, strict=True):
            if gradient is None and site in self._without_autograd:
                raise recomputed(site)

    def _check_acting(self, counts: Mapping[str, int], empty: Sequence[bool]) -> None:
        """Check the gradients of the sources that learn. `counts` has each source's number of entries in `empty`, in order."""
        first = 0
        for name, count in counts.items():
            if self._setup.sources[name].learns:
                self._setup.acting.check(name, empty[first : first + count])
            first += count

    def _check_recorded(self) -> None:
        if self._ignored and not self._called:
            raise UsageError(
                f"in this {self.phase.upper()} batch the model ran without autograd (torch.no_grad, inference_mode) or inside "
                "vmap, which counts as an evaluation. Remove that: a GP batch builds no graph anyway."
            )

    def _check_called(self) -> None:
        """Raise if a batch whose sources should serve some sites serves none."""
        if not any(self._work.served.values()):
            return
        self._check_recorded()
        if not self._called:
            raise UsageError(
                f"no layer of the model was called in this {self.phase.upper()} batch, so there is nothing to train. "
                "Was the model compiled and called before adagp.attach, or is another model in use?"
            )
        for name, sites in self._work.served.items():
            servable = [
                site for site in self._setup.coverage.servable(sites, self._called) if site not in self._ignored
            ]
            if not servable:
                continue
            # A source that learns may produce nothing before its first true gradient.
            if not self._setup.sources[name].learns or bool((self._setup.norms.of(servable) > 0).any()):
                raise source_does_nothing(
                    name, f"produced no gradient for any of the {len(servable)} layers that it serves"
                )


def own_backward() -> UsageError:
    """Return the error for a batch whose loss was differentiated by other means than `Batch.backward`."""
    return UsageError(
        "the loss of this batch was differentiated by loss.backward() or accelerator.backward(loss). Call "
        "batch.backward(loss) instead: it runs the backward pass if there is one, and lets sources learn and predict "
        "(adagp.integrations.accelerate has a loop for accelerate)."
    )


def assign_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Set `.grad` of `parameter` and call the user's hooks on it, as a backward pass would."""
    for hook in (getattr(parameter, "_backward_hooks", None) or {}).values():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    parameter.grad = gradient
    for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(parameter)


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
