"""Feedback: each site's output gradient is regressed on the error at the model's output, without a chain through the layers.

The mathematics is in `regression.py`. This file connects it to the engine: what is kept of a batch, and when it is used.
"""

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Size, Tensor

from adagp.errors import AdagpWarning, OptionError
from adagp.layers.sites import Site
from adagp.layers.weights import blank, sharded_like
from adagp.papers.feedback.data_parallel import LocalCall, join_calls
from adagp.papers.feedback.error_features import ErrorFeatures, SampleAxes, is_other_sequence, rows_for
from adagp.papers.feedback.regression import (
    BiasCorrection,
    FeatureRows,
    Moments,
    SiteRegression,
    as_rows,
    correction_states,
    is_channels_last,
    upgraded_regression_state,
    usable_correction,
)
from adagp.sources.base import BatchContext, ModelCall, Rounds, RunFacts, RunningNorms, on_gradient
from adagp.sources.controls import ReplaySource
from adagp.sources.local import Kept, LocalSource
from adagp.sources.mixed import MixedSource
from adagp.sources.pipeline import ErrorSource, SiteCall

LARGE_MEMORY = 2**28
"""Bytes of fits and bias corrections from which a warning is given, if they are also over four times those of the weights."""


class FeedbackSource(LocalSource, ErrorSource):
    """Predicts each site's output gradient from the loss's gradient at the model's output, by running least squares.

    In BP batches it sees both and updates the fit; `decay` forgets old batches, and `ridge` (times the mean second moment)
    regularizes. In GP batches only the loss is differentiated, at the model's output, and each site's weight gradient is taken
    locally from its input and the predicted output gradient. All sites are independent of each other.

    At most `features` numbers of the error are used per row, a random projection of it where it has more. The work beyond the
    forward pass grows with them: (features + 2) / samples of what the true weight gradient takes. With `class_features` there
    are as many again, of the softmax of the outputs.

    `correction` is the EMA rate of the bias correction: the running mean of what predictions lack in BP batches, which is added
    in GP batches.

    The fit is updated every `learn_every` BP batches, the bias correction every `correct_every`: fewer updates are cheaper. An
    update stands for the BP batches since the last one: it forgets, or moves the mean, as much as these together would.

    In micro-batches means and deviations are those of each micro-batch: predictions differ from those for the whole batch, so
    use micro-batches of one size in BP and GP batches alike.
    """

    learns = True
    joins = True
    takes_sharded = True

    def __init__(
        self,
        features: int = 64,
        decay: float = 0.95,
        ridge: float = 1e-3,
        correction: float = 0.3,
        learn_every: int = 1,
        correct_every: int = 1,
        class_features: bool = False,
        seed: int = 0,
    ) -> None:
        if features < 1:
            raise OptionError(f"feedback uses {features} features of the error; it must use 1 or more.")
        if not 0 <= decay < 1:
            raise OptionError(f"feedback's decay is {decay}; it must be 0 or more and below 1.")
        if not ridge > 0:
            raise OptionError(f"feedback's ridge is {ridge}; it must be above 0.")
        if not 0 <= correction <= 1:
            raise OptionError(f"feedback's correction is {correction}; it must be 0 (none) to 1.")
        for name, every in (("learn_every", learn_every), ("correct_every", correct_every)):
            if every < 1:
                raise OptionError(f"feedback's {name} is {every}; it must be 1 or more.")
        super().__init__("feedback")
        self.decay = decay
        self.ridge = ridge
        self.correction = correction
        self.needs_outputs = class_features
        self._errors = ErrorFeatures(features, seed, classes=class_features)
        self._axes = SampleAxes()
        self._fits: dict[int, SiteRegression] = {}
        self._corrections: dict[int, BiasCorrection] = {}
        self._learning = EveryN(learn_every)
        self._correcting = EveryN(correct_every)
        self._zero_moments: Moments | None = None
        self._memory_checked = False
        # Of the running batch:
        self._call = ModelCall()
        self._pending: dict[ModelCall, list[SiteCall]] = {}
        self._features: dict[ModelCall, Tensor] = {}
        self._whole: dict[ModelCall, Tensor] = {}
        self._rows: dict[tuple[Any, ...], FeatureRows] = {}
        self._watched: dict[Site, bool] = {}  # the sites to learn from, and whether autograd was on
        self._learned: set[Site] = set()
        self._before: tuple[Any, ...] = ()

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the run's seed and the options of its method."""
        return cls(**options, seed=run.seed)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Check that the gradient of every layer can be taken locally."""
        super().bind(sites, norms)
        self._sites = {site.index: site for site in sites}
        self._device = sites[0].weight.device

    # The forward and backward pass of a batch.

    @property
    def wants_inputs(self) -> bool:
        """Whether the bias correction is updated in this batch, from the inputs of sites trained by backprop."""
        return bool(self.correction and self._correcting.due)

    @property
    def wants_gradients(self) -> bool:
        """Whether the fit is updated in this batch."""
        return self._learning.due

    def begin(self, context: BatchContext) -> None:
        """Keep the context of the batch."""
        self._context = context
        self._before = self._errors.outputs, self._axes.state_dict(), dict(self._fits), dict(self._corrections)

    def enter(self, call: ModelCall) -> None:
        """Keep the call: each has errors of its own."""
        self._call = call

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input; wait for the true gradient at the output of a site that is trained by backprop."""
        served, call = site in self._context.replaced, self._call
        predicts, corrects = served or self._context.measured, self.wants_inputs and not served
        learns = self.wants_gradients and not served
        waits = learns and output.requires_grad
        kept = SiteCall(site, output.shape, Kept(site, inputs) if predicts or corrects else None, produce=predicts)
        if predicts or (corrects and not waits):
            self._pending.setdefault(call, []).append(replace(kept, observe=corrects and not waits))
        if learns:
            self._axes.keep(site, output)
            self._watched[site] = torch.is_grad_enabled()
        if not waits:
            return None

        def receive(gradient: Tensor) -> None:
            if not call.known:
                return  # a penalty on gradients of the model reaches its layers, but not by its outputs
            self._use_error(call)
            with torch.autocast(self._device.type, enabled=False):
                if corrects:
                    self._add_inputs(call, kept)  # now, while the backward pass has the same input in the cache
                self._learn(call, site, gradient)

        return on_gradient(output, receive)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Find the sample axis of the sites' outputs, where their sizes are ambiguous."""
        self._axes.settle(outputs)

    def observe_error(self, call: ModelCall) -> None:
        """Take the weight gradients of the sites whose inputs are kept, unless a gradient at a site came first."""
        self._use_error(call)

    def _use_error(self, call: ModelCall) -> None:
        """Take the weight gradients of the sites in a call, once its errors are there."""
        if call in self._features:
            return
        new_output = self._errors.note_outputs(call) if self._watched else None
        if new_output is not None:
            self._start_again(new_output)
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            self._use_features(call, self._errors.of_call(call))

    def _start_again(self, output: int) -> None:
        """Forget the fits: they are of fewer features than there are now."""
        self._fits, self._corrections = {}, {}
        warnings.warn(
            f"the loss depends on output number {output + 1} of the model now, and did not before: feedback begins to learn "
            "again. A longer warm-up until then avoids predictions from few batches.",
            AdagpWarning,
            stacklevel=2,
        )

    def _use_features(self, call: ModelCall, features: Tensor) -> None:
        self._features[call] = features
        if self._context.several:
            return  # `join` does it, for the samples of all processes
        for site_call in self._pending.pop(call, []):
            if site_call.produce:
                self._predict(call, site_call)
            if site_call.observe:
                self._add_inputs(call, site_call)

    def _learn(self, call: ModelCall, site: Site, gradient: Tensor) -> None:
        rows = self._rows_of(call, site, gradient.shape)
        if site.index not in self._fits:
            self._fits[site.index] = SiteRegression.fresh(site, self._initial_moments(rows), gradient)
        self._learned.add(site)
        self._fits[site.index].learn(rows, gradient, self._context.scale)

    def _add_inputs(self, call: ModelCall, site_call: SiteCall) -> None:
        site, inputs = site_call.site, site_call.kept_inputs().detach()
        correction = self._corrections.setdefault(site.index, BiasCorrection())
        rows = as_rows(site, inputs, is_channels_last(inputs))
        correction.sums.add(self._rows_of(call, site, site_call.shape), rows)

    def _predict(self, call: ModelCall, site_call: SiteCall) -> None:
        site, fit = site_call.site, self._fits.get(site_call.site.index)
        if fit is None:  # there was no true gradient yet
            self.add(site, torch.zeros_like(blank(site.weight)))
            return
        # Recent batches are subtracted once per batch, not once per call.
        correction = None if site in self._sums else usable_correction(self._corrections, site)
        rows = self._rows_of(call, site, site_call.shape)
        self.add(site, fit.weight_gradient(site_call.kept_inputs(), rows, site_call.shape, correction))

    def _rows_of(self, call: ModelCall, site: Site, shape: Size) -> FeatureRows:
        """Return the features of a call's errors for the rows of a site; sites with the same rows share them."""
        by_position = site.rule.kind == "linear" and len(shape) > 2
        features, whole = self._features[call], self._whole.get(call)
        other_sequence = is_other_sequence(site, shape, features.shape)
        axis = 1 if other_sequence else self._axes.of(site, shape, features.shape)
        key = (call, by_position, axis, shape[:-1] if by_position else shape[:1])
        if key not in self._rows:
            if other_sequence:  # samples first
                features, whole = features.transpose(0, 1), None if whole is None else whole.transpose(0, 1)
            if whole is not None:
                whole_shape = Size((*shape[:axis], len(whole), *shape[axis + 1 :]))
                whole = rows_for(site, whole_shape, whole, axis)
            self._rows[key] = FeatureRows(rows_for(site, shape, features, axis), whole=whole)
        return self._rows[key]

    def _initial_moments(self, rows: FeatureRows) -> Moments:
        """Return the moments of sites without data: one object, so that they go on sharing theirs."""
        features = rows.mean.shape[1]
        if self._zero_moments is None or self._zero_moments.second.shape[1] != features:
            self._zero_moments = Moments.zero(features, self.ridge, rows.mean.device)
        return self._zero_moments

    # The end of a batch.

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Take the weight gradients, and what the fits learn, from the samples of all processes."""
        calls: list[LocalCall] = []
        for call in self._features:
            for site_call in self._pending.pop(call, []):
                if site_call.produce:
                    rows = self._rows_of(call, site_call.site, site_call.shape)
                    calls.append(LocalCall(site_call.site, site_call.kept_inputs(), site_call.shape, rows))
                if site_call.observe:
                    self._add_inputs(call, site_call)
        without_fit = [
            call.site for call in calls if call.site.index not in self._fits
        ]  # there was no true gradient yet
        self._sums |= {site: torch.zeros_like(site.weight) for site in without_fit}
        return join_calls(sites, self._fits, self._corrections, calls, self._sums)

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the weight gradients of the sites that were called, with their bias correction."""
        corrections = [self._corrections.get(site.index) for site in sites]
        return [
            gradient
            if gradient is None or correction is None or correction.gradient is None
            else gradient + correction.gradient
            for gradient, correction in zip(super().produce(sites), corrections, strict=True)
        ]

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Update the fits by the output gradients of the backward pass, and the bias corrections by the true gradients."""
        self.prepare_learning(sites, gradients)()

    @torch.no_grad()
    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Take in the true gradients; the updates of fits and bias corrections follow."""
        learned, corrected = self._learning.batches, self._correcting.batches
        rate, decay = 1 - (1 - self.correction) ** corrected, self.decay**learned
        means: dict[int, Tensor] = {}
        if learned:
            self.check_gradients_seen(sites, self._watched, self._learned)
        for site, truth in zip(sites, gradients, strict=True) if learned or corrected else ():
            index = site.index
            if corrected and index in self._corrections and index in self._fits:
                means[index] = self._corrections[index].mean_with(truth, rate)

        def learn() -> None:
            self._learning.advance()
            self._correcting.advance()
            for index, mean in means.items():
                self._corrections[index].commit(mean, rate)
            for site in sites if learned or corrected else ():
                if site.index in self._fits:
                    self._fits[site.index].regression.commit(decay)
            if not self._memory_checked:
                self._check_memory()

        return learn

    def _check_memory(self) -> None:
        """Warn if the fits take far more memory than the weights: after the first batch they have their full size."""
        self._memory_checked = True
        numbers = sum(2 * fit.regression.patterns.numel() for fit in self._fits.values())
        numbers += sum(one.inputs.numel() for one in self._corrections.values() if one.inputs is not None)
        weights = sum(site.weight.numel() for site in self._sites.values())
        if 4 * numbers > max(LARGE_MEMORY, 16 * weights):
            warnings.warn(
                f"feedback keeps {4 * numbers / 1e6:.0f} MB of patterns and mixed inputs, {numbers / weights:.0f} times as "
                f"much as the weights: it uses {self._errors.most} features of the error, and each takes three numbers for one "
                "of a layer's output. Fewer take less, in proportion: adagp.Feedback(features=16).",
                AdagpWarning,
                stacklevel=2,
            )

    def discard(self) -> None:
        """Undo what was found out in this batch."""
        self._errors.outputs, axes, self._fits, self._corrections = self._before
        self._axes.load_state_dict(axes)

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._axes.drop()
        self._pending.clear()
        self._features.clear()
        self._whole.clear()
        self._rows.clear()
        self._watched.clear()
        self._learned.clear()
        for fit in self._fits.values():
            fit.regression.drop()
        for correction in self._corrections.values():
            correction.drop()

    # In a pipeline (`ErrorSource`).

    def features_of(self, errors: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
        """Return the features of the model's outputs and of the errors there, samples first."""
        return self._errors.of_several(errors, outputs)

    def catch_up(self, features: Tensor, calls: Sequence[SiteCall], whole: Tensor | None = None) -> None:
        """See forward calls of sites that the pipeline has kept, as `watch` and `observe_error` would have."""
        call = ModelCall()
        self._errors.outputs = self._errors.outputs or [0]
        if whole is not None:
            self._whole[call] = whole
        self._pending[call] = [site_call for site_call in calls if site_call.inputs is not None]
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            self._use_features(call, features)
        for site_call in calls:
            if site_call.gradient is not None:
                self._learn(call, site_call.site, site_call.gradient)

    def summed(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the gradients of `sites`, and the sums that their fits and bias corrections learn from."""
        fits = [self._fits[site.index].regression.sums for site in sites if site.index in self._fits]
        corrections = [self._corrections[site.index].sums for site in sites if site.index in self._corrections]
        return [*self._sums_of(sites), *(tensor for sums in (*fits, *corrections) for tensor in sums.tensors())]

    def shard(self, sites: Sequence[Site]) -> None:
        """Shard the gradients of `sites`, which are those of the whole batch, like their weights."""
        self._sums |= {site: sharded_like(self._sums[site], site.weight) for site in sites if site in self._sums}

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop everything: `catch_up` has shown the calls of these sites only."""
        self.forget()

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return the fits and bias corrections by site, and what is needed to go on with them."""
        return {
            "fits": {index: fit.state_dict() for index, fit in self._fits.items()},
            "references": {index: correction.state_dict() for index, correction in self._corrections.items()},
            "outputs": list(self._errors.outputs),
            "sample_axes": self._axes.state_dict(),
            "waiting": [self._learning.since_last, self._correcting.since_last],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        shared: list[Moments] = []
        self._fits = {
            index: SiteRegression.from_state(self._sites[index], fit, self._shared_moments(fit["second"], shared))
            for index, fit in ((index, upgraded_regression_state(fit)) for index, fit in state["fits"].items())
        }
        self._learning.since_last, self._correcting.since_last = state.get("waiting", (0, 0))
        self._errors.outputs = list(state.get("outputs", ()))  # older checkpoints have none: there was one output
        self._axes.load_state_dict(state.get("sample_axes", {}))
        self._corrections = {
            index: self._load_correction(self._sites[index], correction)
            for index, correction in correction_states(state).items()
        }

    def site_state(self, sites: Collection[int]) -> dict[str, Any]:
        """Return `state_dict` with the fits and bias corrections of some sites only."""
        state = self.state_dict()
        for name in ("fits", "references", "sample_axes"):
            state[name] = {index: entry for index, entry in state[name].items() if index in sites}
        return state

    def load_site_state(self, part: dict[str, Any]) -> None:
        """Restore the fits and bias corrections of some sites, and keep those of the others."""
        state = self.state_dict()
        for name in ("fits", "references", "sample_axes"):
            state[name] |= part[name]
        self.load_state_dict(state)

    def _load_correction(self, site: Site, state: dict[str, Any]) -> BiasCorrection:
        means = {name: mean if mean is None else mean.to(self._device, copy=True) for name, mean in state.items()}
        if means["truth"] is not None:
            means["truth"] = sharded_like(means["truth"], site.weight)
        return BiasCorrection.from_state(means)

    def _shared_moments(self, second: Tensor, loaded: list[Moments]) -> Moments:
        """Return saved moments, the same object for all sites with equal ones: they will share each later update."""
        second = second.to(self._device, copy=True)
        for moments in loaded:
            if torch.equal(moments.second, second):
                return moments
        loaded.append(Moments(second, self.ridge))
        return loaded[-1]


class EveryN:
    """Counts BP batches: the first is due, then every `n`th."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.since_last: int | None = None

    @property
    def due(self) -> bool:
        """Whether the running batch is due."""
        return self.since_last is None or self.since_last + 1 >= self.n

    @property
    def batches(self) -> int:
        """The number of batches since the last due one if this is due, else 0."""
        return (self.since_last or 0) + 1 if self.due else 0

    def advance(self) -> int:
        """Go on to the next batch. Return what `batches` was."""
        batches = self.batches
        self.since_last = 0 if self.due else (self.since_last or 0) + 1
        return batches


class FeedbackReplaySource(MixedSource):
    """`share` of feedback and the rest of replay: two estimates of one gradient with errors of different kinds."""

    def __init__(self, feedback: FeedbackSource | None = None, share: float = 0.5) -> None:
        if not 0 <= share <= 1:
            raise OptionError(f"feedback's share in the mixture is {share}; it must be 0 to 1.")
        super().__init__([(feedback or FeedbackSource(), share), (ReplaySource(), 1 - share)])

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the mean of both, with feedback's options."""
        return cls(FeedbackSource.build(run, **options))
