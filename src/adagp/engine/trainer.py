"""One batch under its plan.

Read from top to bottom, `Trainer` follows a batch::

    plan = schedule.plan(step)                  # or backprop, if the guard has stopped a GP phase
    freeze what the plan does not need          # requires_grad of the weights whose gradient comes from a source
    output = model(inputs)                      # sources see the sites' forward calls
    batch.backward(loss)                        # differentiate (autograd, if some site needs it), then
                                                # complete: sources learn from true gradients and produce the others
    batch.step()                                # the user's own optimizer, then the weight-update hooks, if there are any
    advance                                     # to the next step

Within a batch each weight is used with one value. So collecting all gradients and stepping the optimizer once, after the
forward pass, gives the same weights as updating each layer as soon as its output is known. It works with any optimizer.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, RunLength, Step
from adagp.core.precision import Precision
from adagp.engine.batch import Batch, BatchResult, own_backward
from adagp.engine.batch_plan import TrainingSetup
from adagp.engine.distributed import Processes
from adagp.engine.extensions import Arithmetic, ArithmeticFacts, WeightUpdateHook
from adagp.engine.guard import ActingSources, BackpropCoverage, Guard, RejectionCounts
from adagp.engine.hooks import ModelHooks, OutputSelector, call, restore_forward
from adagp.engine.metrics import DensityMeter, QualityMeter
from adagp.engine.model_checks import AttachedModel, LossGraphCheck, PreviousGradients, Rehearsal
from adagp.engine.saved_state import Stateful, StatefulGroup, check_state, load_states, saved_states
from adagp.engine.split import SplitBatch
from adagp.errors import AdagpWarning, UsageError
from adagp.layers.sites import Survey
from adagp.schedules.base import Schedule
from adagp.sources.base import RunningNorms, Source, SplitSource, gradient_hooks_off

SITES_SHOWN = 6
"""How many sites are named when a trainer is printed."""
LossFunction = Callable[[Any, Any], Tensor]


class Trainer:
    """Trains a user's model with a user's optimizer, each batch under the plan that the schedule gives.

    Made by `adagp.attach`. Model and optimizer stay the user's own objects: nothing is wrapped or copied.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        schedule: Schedule,
        sources: Mapping[str, Source],
        survey: Survey,
        *,
        length: RunLength,
        method: str = "",
        guard: Guard,
        metrics_every: int,
        noise: bool = False,
        scaler: torch.amp.GradScaler | None = None,
        output: OutputSelector = None,
        processes: Processes | None = None,
        precision: Precision | None = None,
        facts: ArithmeticFacts | None = None,
        weight_hooks: Sequence[WeightUpdateHook] = (),
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.schedule = schedule
        self.sources = dict(sources)
        self.survey = survey
        self.method = method
        self.length = length
        self.norms = RunningNorms(survey.sites)
        learners = [name for name, source in self.sources.items() if source.learns]
        self.quality = QualityMeter(survey.sites, metrics_every, learners, noise=noise)
        for source in self.sources.values():
            source.bind(survey.sites, self.norms)
        traceable = all(source.traceable for source in self.sources.values())
        hooks = ModelHooks(model, survey.sites, output, traceable=traceable)
        self.arithmetic: Arithmetic | None = None
        if precision is not None and facts is not None:
            self.arithmetic = precision.arithmetic(facts, hooks.records)
            hooks.source_context = self.arithmetic.paused
        self.weight_hooks = tuple(weight_hooks)
        for hook in self.weight_hooks:
            hook.bind(survey)
        self.densities = DensityMeter(survey.sites, metrics_every) if self.weight_hooks else None
        self.setup = TrainingSetup(
            model,
            survey,
            self.optimizers,
            scaler or torch.amp.GradScaler(enabled=False),
            self.sources,
            hooks,
            guard,
            RejectionCounts(survey.sites),
            BackpropCoverage(),
            ActingSources(),
            LossGraphCheck(
                model, survey.sites, [name for name, source in self.sources.items() if source.local], self.optimizers
            ),
            self.norms,
            self.quality,
            processes or Processes(model, several=False),
            self.device,
            schedule.adapts,
            self.arithmetic,
            self.weight_hooks,
            self.densities,
        )
        self._structure = AttachedModel(model, survey, self.optimizers)
        self._at = Step(0, 0)
        self._broken_off = False
        self._forced: Plan | None = None
        self._open: Batch | None = None
        self._attached = True
        self._previous_gradients = PreviousGradients(self.optimizers)
        self.last: Batch | None = None
        self.ended = 0

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, or the first of several."""
        return self.optimizers[0]

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches per epoch."""
        return self.length.batches_per_epoch

    @property
    def batches(self) -> int | None:
        """The number of batches of a run whose last epoch may be short; None for a run of whole epochs."""
        return self.length.batches

    def __repr__(self) -> str:
        """Return method, schedule, place in the run, and sites."""
        sites = [site.name for site in self.survey.sites]
        named = ", ".join(sites if len(sites) <= SITES_SHOWN else [*sites[: SITES_SHOWN - 1], "...", sites[-1]])
        return "\n".join(
            [
                f"Trainer of {type(self.model).__name__} ({'attached' if self._attached else 'detached'})",
                f"  method    {self.method or 'that of the schedule'}; sources: {', '.join(self.sources) or 'none'}",
                f"  schedule  {self.schedule.description}",
                f"  position  {self._position()}",
                f"  sites     {len(sites)}: {named}",
            ]
        )

    def _position(self) -> str:
        if self.done >= self.length.total:
            return f"all {self.length.total} batches are done ({self.length})"
        return (
            f"batch {self.at.batch + 1} of {self.epoch_length(self.at.epoch)} in epoch {self.at.epoch + 1} of "
            f"{self.length.epochs} comes next, as {self.phase.upper()}; {self.done} of {self.length.total} batches are done"
        )

    @property
    def refusals(self) -> RejectionCounts:
        """The former name of `rejections`."""
        warnings.warn("Trainer.refusals is deprecated: use Trainer.rejections.", DeprecationWarning, stacklevel=2)
        return self.rejections

    @property
    def rejections(self) -> RejectionCounts:
        """Counts of what the guard has rejected."""
        return self.setup.rejections

    @property
    def at(self) -> Step:
        """The position of the coming batch in the run."""
        return self._at

    def move_to(self, step: Step) -> None:
        """Continue with the batch at `step`."""
        self._at = step

    @property
    def plan(self) -> Plan:
        """The plan of the coming batch."""
        if self._forced is not None:
            return self._forced
        return BACKPROP_ALL if self._broken_off else self.schedule.plan(self.at)

    @property
    def done(self) -> int:
        """The number of batches trained so far, in all epochs."""
        done = self.at.epoch * self.batches_per_epoch + self.at.batch
        return done if self.batches is None else min(done, self.batches)

    def epoch_length(self, epoch: int) -> int:
        """Return the number of batches in `epoch`: the last epoch of a run of `batches` may be short."""
        whole = self.batches_per_epoch
        return whole if self.batches is None else min(whole, self.batches - epoch * whole)

    @property
    def phase(self) -> Phase:
        """The phase of the coming batch."""
        return self.plan.phase

    def step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> BatchResult:
        """Train on one batch. A tuple of inputs is passed to the model as separate arguments, a dict by name."""
        with self.batch(targets) as batch:
            if batch.skipped:
                return BatchResult(batch.phase, torch.full((), torch.nan), None, guarded=False, skipped=True)
            outputs = []
            for part_inputs, part_targets in batch.parts(inputs, targets):
                outputs.append(call(self.model, part_inputs))
                batch.backward(loss_fn(outputs[-1], part_targets))
            batch.step()
            loss, output = batch.loss, batch.joined(outputs)
        assert loss is not None, "backward() was called"
        return BatchResult(batch.phase, loss, output, batch.guarded)

    @property
    def needs_targets(self) -> bool:
        """Whether a source needs the targets: `batch` and `begin` must then get them."""
        return any(source.needs_targets for source in self.sources.values())

    @contextmanager
    def batch(self, targets: Any = None) -> Iterator[Batch]:
        """Prepare model and autograd for the coming batch; at the end, restore both and move on to the next batch.

        `targets` are for sources that need them. If the body raises before `Batch.step`, model and trainer are as before the
        batch, and no source has learned from it.
        """
        batch = self.begin(targets)
        try:
            yield batch
            if self._open is batch:
                batch.check_finished()
                batch.finish()
        except RuntimeError as error:
            # A GP batch builds no graph, so torch has nothing to differentiate.
            if "does not require grad" in str(error) and batch.is_untouched and not batch.needs_backward:
                raise own_backward() from error
            raise
        finally:
            if self._open is batch:
                self.discard_batch()

    def begin(self, targets: Any = None) -> Batch:
        """Begin the coming batch, as `batch` does, but without a `with` statement; end it by `Batch.finish` or `abandon`."""
        if not self._attached:
            raise UsageError("the trainer was detached from its model; call adagp.attach again to train.")
        if self._open is not None:
            raise UsageError("the last batch is not over: call its finish(), or abandon() to give it up.")
        if self.setup.processes.several:
            self.setup.processes.reshard()
        self._structure.check()
        self.setup.hooks.stay_first()
        self._check_length()
        batch = self._new_batch(targets)
        self._previous_gradients.check_unchanged()
        self.setup.drop_gradients()
        self._open, self._exits = batch, ExitStack()
        try:
            # Gradients that the user computes inside the batch, outside `backward`, are not part of training.
            self._exits.enter_context(gradient_hooks_off())
            if self.arithmetic is not None:
                self._exits.enter_context(self.arithmetic.batch(self.done))
            if isinstance(batch, SplitBatch):  # each of its parts enters _passes itself
                self._exits.callback(batch.end_part)
            else:
                self._exits.enter_context(self._passes(batch))
        except BaseException:
            self.discard_batch()
            raise
        batch.on_end = lambda: self._end(batch)
        return batch

    def _check_length(self) -> None:
        if self.at.epoch * self.batches_per_epoch + self.at.batch == self.length.total:
            warnings.warn(
                f"the run goes on beyond the length given to attach, {self.length}. The schedule continues as in "
                "its last epoch.",
                AdagpWarning,
                stacklevel=4,
            )

    def _new_batch(self, targets: Any) -> Batch:
        plan = self.plan
        source = self.sources.get(plan.default)
        if isinstance(source, SplitSource):
            return SplitBatch(self.setup, plan, self.at, targets, source, self._passes)
        return Batch(self.setup, plan, self.at, targets)

    @contextmanager
    def _passes(self, batch: Batch) -> Iterator[None]:
        """Let the sources see the passes of `batch` inside the context, with the parameters frozen that its plan freezes."""
        with ExitStack() as exits:
            exits.callback(self._forget)
            if not batch.skipped:
                for source in self.sources.values():
                    source.begin(batch.context)
            exits.enter_context(self.setup.hooks.active(batch.listeners))
            if self.setup.processes.several:
                exits.enter_context(self.setup.processes.without_exchange(batch.backward_is_whole))
            exits.callback(batch.frozen.unfreeze)
            batch.frozen.freeze()
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Use the model inside the context for passes that are not part of training, even in the middle of a batch.

        Examples are adversarial examples, an evaluation, a teacher.
        """
        with ExitStack() as stack:
            if self._open is not None:
                stack.enter_context(self._open.paused())
            yield

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Use the arithmetic of the last batch inside the context, if `precision` is not single precision.

        The running statistics of normalisation layers are those of training in few bits: evaluated in float, the model would do
        worse.
        """
        with ExitStack() as stack:
            if self.arithmetic is not None:
                stack.enter_context(self.arithmetic.evaluation(max(0, self.done - 1)))
            yield

    def rehearse(self, step: Callable[[], object]) -> Rehearsal:
        """Run `step`, which trains one batch in your own way, once as a BP and once as a GP batch; put everything back.

        Restored are the model, the optimizers, the trainer, random numbers, batches drawn from a `DataLoader`, and objects that
        the step's code names: those with a `state_dict` (schedulers, averages of weights), lists, dictionaries, tensors and
        counters. A step that draws from a generator is an error. `print` the result: it names layers that are never called, get
        no gradient or are rejected, parameters that move and should not, and the memory that a GP batch saves. A step that
        cannot work raises here, not after the warm-up.
        """
        from adagp.engine.rehearsal import rehearse  # late: it imports this module

        return rehearse(self, step)

    @contextmanager
    def forced(self, plan: Plan) -> Iterator[None]:
        """Train under `plan` inside the context, instead of the schedule's plans."""
        before, self._forced = self._forced, plan
        try:
            yield
        finally:
            self._forced = before

    def keep_gradients(self) -> None:
        """Record the present gradients as those of the last batch: the next batch drops them."""
        self._previous_gradients.record()

    def _end(self, batch: Batch) -> None:
        if self._open is not batch:
            raise UsageError("the batch is over already.")
        self._close()
        self.keep_gradients()
        self.last, self.ended = batch, self.ended + 1
        if self.densities is not None and not batch.skipped:
            self.densities.end_batch()
        if self.schedule.adapts and not batch.abandoned:
            self.schedule.observe(batch.report)
        self.advance(guarded=batch.guarded)

    def _close(self) -> None:
        self._open = None
        self._exits.close()

    def discard_batch(self) -> None:
        """Discard the open batch, if there is one: after an exception, or before the trainer is detached.

        Model and trainer are as before the batch, except for weights that an optimizer has changed.
        """
        if self._open is not None:
            self._open.discard()
            self._close()

    def _forget(self) -> None:
        for source in self.sources.values():
            source.forget()

    def advance(self, *, guarded: bool = False) -> None:
        """Move on to the next batch; `guarded`: the guard rejected all gradients of this one."""
        last = self.at.batch + 1 == self.epoch_length(self.at.epoch)
        self.move_to(Step(self.at.epoch + 1, 0) if last else Step(self.at.epoch, self.at.batch + 1))
        if last:
            for source in self.sources.values():
                source.end_epoch()
        # A guarded phase lasts until the schedule itself leaves it, or the epoch ends.
        continues = not last and self.schedule.plan(self.at).phase is Phase.GP
        self._broken_off = continues and (self._broken_off or guarded)

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return next(self.model.parameters()).device

    def detach(self) -> None:
        """Remove the hooks from the model and discard an open batch. The trainer cannot be used after that."""
        self.discard_batch()
        self._previous_gradients.drop_recorded()
        self.setup.hooks.remove()
        restore_forward(self.model)
        self._attached = False

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's own state, without the states of the model and the optimizers."""
        return {
            "epoch": self.at.epoch,
            "batch": self.at.batch,
            "broken_off": self._broken_off,
            "length": asdict(self.length),
            "sites": [site.name for site in self.survey.sites],
            "shapes": [list(site.weight.shape) for site in self.survey.sites],
            **saved_states(self._stateful_parts()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; raise if it belongs to another run or another model."""
        check_state(
            state, self.length, {site.name: list(site.weight.shape) for site in self.survey.sites}, self.sources
        )
        self.move_to(Step(state["epoch"], state["batch"]))
        self._broken_off = state["broken_off"]
        load_states(self._stateful_parts(), state)

    def _stateful_parts(self) -> dict[str, Stateful]:
        """Return the parts that have a state, by their names in checkpoints, which older checkpoints use as well."""
        parts: dict[str, Stateful] = {
            "norms": self.norms,
            "quality": self.quality,
            "refusals": self.rejections,
            "reach": self.setup.coverage,
            "schedule": self.schedule,
            "sources": StatefulGroup(self.sources),
        }
        if self.arithmetic is not None:
            parts["precisions"] = self.arithmetic
        if self.densities is not None:
            parts |= {"upkeep": StatefulGroup(self.weight_hooks), "densities": self.densities}
        return parts

    def read_sites(self) -> dict[str, dict[str, float | None]]:
        """Return the metrics of each site since the last call, and reset them.

        These are the quality of predictions, with weight-update hooks the densities, and the widths of numbers if the
        arithmetic is not single precision.
        """
        metrics = self.quality.read()
        if self.densities is not None:
            densities = self.densities.read()
            for name, figures in metrics.items():  # several learners have an entry each: `site (learner)`
                figures |= densities[name if name in densities else name.rpartition(" (")[0]]
        if self.arithmetic is not None:
            for name, widths in self.arithmetic.read_metrics().items():
                metrics.setdefault(name, {}).update(widths)
        return metrics

    def packed_weights(self) -> dict[str, Any]:
        """Return the model's state_dict for a checkpoint, compressed by the weight-update hooks."""
        weights: dict[str, Any] = self.model.state_dict()
        for hook in self.weight_hooks:
            weights = hook.compress(weights)
        return weights

    def load_packed_weights(self, weights: dict[str, Any]) -> None:
        """Load the weights that `packed_weights` returned."""
        for hook in reversed(self.weight_hooks):
            weights = hook.expand(weights)
        self.model.load_state_dict(weights)
