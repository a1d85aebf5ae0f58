"""Feedback: each site's output gradient is regressed on the error at the model's output, without a chain through the layers.

The mathematics is in `regression.py`. This file connects it to the engine: what is kept of a batch, and when it is used.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Size, Tensor

from adagp.errors import AdagpWarning, OptionError
from adagp.layers.sites import Site
from adagp.layers.weights import blank, sharded_like
from adagp.papers.feedback.data_parallel import LocalCall, join_calls
from adagp.papers.feedback.error_features import ErrorFeatures, SampleAxes, is_ambiguous, is_other_sequence, rows_for
from adagp.papers.feedback.pooling import KeptMaps, feedback_demand, kept_bytes, largest_side
from adagp.papers.feedback.regression import (
    BiasCorrection,
    CrossSums,
    FeatureRows,
    MixedInputs,
    Moments,
    SiteRegression,
    correction_states,
    is_channels_last,
    pooled_rows,
    upgraded_regression_state,
    usable_correction,
)
from adagp.sources.base import BatchContext, ModelCall, Rounds, RunFacts, RunningNorms, missing_error, on_gradient
from adagp.sources.controls import ReplaySource
from adagp.sources.demand import Demand, TrialCall
from adagp.sources.local import Kept, LocalSource
from adagp.sources.mixed import MixedSource
from adagp.sources.pipeline import ErrorSource, SiteCall

CallKey = tuple[int, int]
"""A forward call of a site: the number of the model's call in a micro-batch, and that of the site's call in it."""


class _Snapshot(NamedTuple):
    """The state at the beginning of a batch, to which `discard` goes back."""

    outputs: list[int]
    axes: dict[int, int]
    fits: dict[int, SiteRegression]
    corrections: dict[int, BiasCorrection]
    sides: dict[int, int]


class FeedbackSource(LocalSource, ErrorSource):
    """Predicts each site's output gradient from the loss's gradient at the model's output, by running least squares.

    In BP batches it sees both and updates the fit; `decay` forgets old batches, faster if batches are large (`weight_of_past`),
    and `ridge` (times the mean second moment) regularizes. In GP batches only the loss is differentiated, at the model's
    output, and each site's weight gradient is taken locally from its input and the predicted output gradient. All sites are
    independent of each other.

    At most `features` numbers of the error are used per row; a wider error is projected at random. The work beyond the
    forward pass grows with them: it is (features + 2) / samples of that for the true weight gradient. With `class_features`
    there are as many features again, from the softmax of the outputs.

    `correction` is the EMA rate of the bias correction: the running mean of the true minus the predicted gradients in BP
    batches, which is added in GP batches.

    The fit is updated every `learn_every` BP batches, the bias correction every `correct_every`: fewer updates are cheaper. An
    update stands for the BP batches since the last one: it forgets, or moves the mean, as much as these together would.

    Between batches it keeps at most `memory_limit` times the memory of the weights, or 64 MB if that is more. Maps that would
    need more are averaged over blocks of positions.

    Micro-batches give the gradients of the whole batch: sums are taken around the mean of the first micro-batch and corrected
    at the end.
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
        memory_limit: float = 2.0,
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
        if not memory_limit >= 0:
            raise OptionError(f"feedback's memory_limit is {memory_limit}; it must be 0 or more.")
        super().__init__("feedback")
        self.memory_limit = memory_limit
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
        self._sides: dict[int, int] = {}  # of sites without a fit: see `SiteRegression.side`
        # Of the running batch:
        self._call = ModelCall()
        self._error_seen = False  # since the last call of the model began
        self._call_numbers: dict[ModelCall, int] = {}  # in each micro-batch
        self._site_calls: Counter[tuple[str, ModelCall, Site]] = Counter()
        self._maps: dict[Site, KeptMaps] = {}
        self._mixed: dict[tuple[Site, CallKey], MixedInputs] = {}
        self._joined: dict[tuple[FeatureRows, ...], FeatureRows] = {}
        self._pending: dict[ModelCall, list[SiteCall]] = {}
        self._features: dict[ModelCall, Tensor] = {}
        self._whole: dict[ModelCall, Tensor] = {}
        self._rows: dict[tuple[Any, ...], FeatureRows] = {}
        self._watched: dict[Site, bool] = {}  # the sites to learn from, and whether autograd was on
        self._learned: set[Site] = set()
        self._before = _Snapshot([], {}, {}, {}, {})

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the run's seed and the options of its method."""
        return cls(**options, seed=run.seed)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Check that the gradient of every layer can be taken locally."""
        super().bind(sites, norms)
        self._sites = {site.index: site for site in sites}
        self._device = sites[0].weight.device

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:
        """Raise ModelError if the sizes of a site's output and of the model's cannot belong to the same samples."""
        super().check_call(call, outputs)
        if not outputs:
            raise missing_error("feedback")
        if not is_other_sequence(call.site, call.output, outputs[0]) and not is_ambiguous(call.output, outputs[0]):
            SampleAxes().of(call.site, call.output, outputs[0])

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return the memory and the work of the fits, of a batch's sums and of the inputs kept in a GP batch."""
        features = self._errors.count(outputs)
        learned, corrected = 1 / self._learning.n, 1 / self._correcting.n if self.correction else 0
        return feedback_demand(calls, features, self.memory_limit, learned, corrected)

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
        fits, corrections, sides = dict(self._fits), dict(self._corrections), dict(self._sides)
        self._before = _Snapshot(self._errors.outputs, self._axes.state_dict(), fits, corrections, sides)

    def enter(self, call: ModelCall) -> None:
        """Number the call within its micro-batch. The first call after an error begins a new micro-batch."""
        first = self._error_seen or not self._call_numbers
        self._call_numbers[call] = 0 if first else self._call_numbers[self._call] + 1
        self._call, self._error_seen = call, False

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input; wait for the true gradient at the output of a site that is trained by backprop."""
        call = self._call
        if site in self._context.replaced:
            served = SiteCall(site, output.shape, Kept(site, inputs), produce=True)
            self._pending.setdefault(call, []).append(served)
            return None
        predicts, corrects = self._context.measured, self.wants_inputs
        waits = self.wants_gradients and output.requires_grad
        observes = corrects and not waits
        kept = SiteCall(site, output.shape, Kept(site, inputs) if predicts or corrects else None, produce=predicts)
        if predicts or observes:
            self._pending.setdefault(call, []).append(replace(kept, observe=observes))
        if self.wants_gradients:
            self._expect_gradient(site, inputs[0], output)
        if not waits:
            return None

        def receive(gradient: Tensor) -> None:
            if not call.known:
                return  # a gradient penalty reaches the layers, but not through the model's outputs
            self._use_error(call)
            with torch.autocast(self._device.type, enabled=False):
                if corrects:
                    self._add_inputs(call, kept)  # now, while the backward pass has the same input in the cache
                self._learn(call, site, gradient)

        return on_gradient(output, receive)

    def _expect_gradient(self, site: Site, inputs: Tensor, output: Tensor) -> None:
        """Store what the fit needs to use the gradient at the site's output later."""
        self._axes.keep(site, output)
        self._watched[site] = torch.is_grad_enabled()
        self._maps[site] = KeptMaps(site, output.shape, inputs.shape if self.correction else None)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Find the sample axis of the sites' outputs that have ambiguous sizes."""
        self._axes.settle(outputs)

    def observe_error(self, call: ModelCall) -> None:
        """Take the weight gradients of the sites whose inputs are kept, unless a gradient at a site came first."""
        self._use_error(call)

    def _use_error(self, call: ModelCall) -> None:
        """Take the weight gradients of the sites in a call, when its errors are first known."""
        if call in self._features:
            return
        self._error_seen = True
        new_output = self._errors.note_outputs(call) if self._watched else None
        if new_output is not None:
            self._start_again(new_output)
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            self._use_features(call, self._errors.of_call(call))

    def _start_again(self, output: int) -> None:
        """Forget the fits: they were made with fewer features than there are now."""
        self._fits, self._corrections, self._sides = {}, {}, {}
        warnings.warn(
            f"the loss depends on output number {output + 1} of the model now, but did not before: feedback starts "
            "to learn again. A longer warm-up avoids predictions from few batches.",
            AdagpWarning,
            stacklevel=2,
        )

    def _use_features(self, call: ModelCall, features: Tensor) -> None:
        self._features[call] = features
        self._limit_memory(features.shape[-1])
        pending = self._pending.pop(call, [])[::-1]
        while pending:  # what was used is freed
            site_call = pending.pop()
            if site_call.produce:
                self._mix(call, site_call)
            if site_call.observe:
                self._add_inputs(call, site_call)

    def _limit_memory(self, features: int) -> None:
        """Choose how far to average the maps of new sites. By now all sites that a batch calls are known."""
        maps = [kept for site, kept in self._maps.items() if site.index not in self._fits.keys() | self._sides.keys()]
        if not maps:
            return
        side = largest_side(maps, features, self.memory_limit)
        self._sides |= {kept.site.index: side for kept in maps}
        if side:
            self._warn_of_memory(maps, features, side)

    def _warn_of_memory(self, maps: Sequence[KeptMaps], features: int, side: int) -> None:
        weights = 4 * sum(kept.site.weight.numel() for kept in maps)
        full, reduced = kept_bytes(maps, features), kept_bytes(maps, features, side)
        warnings.warn(
            f"feedback would keep {full / 1e6:.0f} MB for {features} features of the error, {full / weights:.1f} times as much "
            f"as the weights. It averages maps to at most {side} positions per axis, and keeps {reduced / 1e6:.0f} MB, "
            f"{reduced / weights:.1f} times as much. Fewer features leave more positions (features=16); "
            f"memory_limit={2 * self.memory_limit:g} allows more memory than {self.memory_limit:g} times the weights.",
            AdagpWarning,
            stacklevel=2,
        )

    def _learn(self, call: ModelCall, site: Site, gradient: Tensor) -> None:
        rows = self._rows_of(call, site, gradient.shape)
        if site.index not in self._fits:
            moments, side = self._initial_moments(rows), self._sides.get(site.index, 0)
            self._fits[site.index] = SiteRegression.fresh(site, moments, gradient, side)
        self._learned.add(site)
        self._fits[site.index].learn(rows, gradient, self._context.scale, self._key("output", call, site))

    def _add_inputs(self, call: ModelCall, site_call: SiteCall) -> None:
        site, inputs = site_call.site, site_call.kept_inputs().detach()
        correction = self._corrections.setdefault(site.index, BiasCorrection())
        side = self._fits[site.index].side if site.index in self._fits else self._sides.get(site.index, 0)
        numbers = pooled_rows(site, inputs, is_channels_last(inputs), side)
        rows = self._rows_of(call, site, site_call.shape)
        correction.sums.add(rows, numbers, call=self._key("input", call, site))

    def _mix(self, call: ModelCall, site_call: SiteCall) -> None:
        """Mix the inputs of a call. Its weight gradient is taken once all micro-batches are mixed."""
        site, fit = site_call.site, self._fits.get(site_call.site.index)
        if fit is None or site.index not in self._before.fits:  # there was no true gradient before this batch
            self.add(site, torch.zeros_like(site.weight if self._context.several else blank(site.weight)))
            return
        inputs, key = site_call.kept_inputs(), (site, self._key("mixed", call, site))
        if key not in self._mixed:
            self._mixed[key] = MixedInputs(fit, inputs, site_call.shape)
        self._mixed[key].add(inputs, self._rows_of(call, site, site_call.shape))

    def _key(self, what: str, call: ModelCall, site: Site) -> CallKey:
        """Return the key of a site's next call in a call of the model: the same in all micro-batches."""
        number = self._site_calls[what, call, site]
        self._site_calls[what, call, site] += 1
        return self._call_numbers.get(call, 0), number

    def _join_parts(self, parts: Sequence[FeatureRows]) -> FeatureRows:
        """Return the features of micro-batches as one object, the same for all sites, which then still share moments."""
        key = tuple(parts)
        if key not in self._joined:
            self._joined[key] = FeatureRows.joined(parts)
        return self._joined[key]

    def _take_gradients(self) -> None:
        """Take the weight gradients of the mixed inputs."""
        mixed, self._mixed = self._mixed, {}
        for (site, _), inputs in mixed.items():
            # Recent batches are subtracted once per batch, not once per call.
            correction = None if site in self._sums else usable_correction(self._corrections, site)
            rows = inputs.join_micro_batches(self._join_parts)
            self.add(site, inputs.weight_gradient(rows, correction))

    def _join_micro_batches(self, sites: Sequence[Site]) -> None:
        """Turn the sums that fits and bias corrections learn from into sums of the whole batch."""
        for sums in self._sums_learned_from(sites):
            sums.join_micro_batches(self._join_parts)

    def _sums_learned_from(self, sites: Sequence[Site]) -> list[CrossSums]:
        fits = [self._fits[site.index].regression.sums for site in sites if site.index in self._fits]
        return fits + [self._corrections[site.index].sums for site in sites if site.index in self._corrections]

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
        """Return the moments of sites without data: one object, so that all later moments are shared, too."""
        features = rows.mean.shape[1]
        if self._zero_moments is None or self._zero_moments.second.shape[1] != features:
            self._zero_moments = Moments.zero(features, self.ridge, rows.mean.device)
        return self._zero_moments

    # The end of a batch.

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Take the weight gradients, and what the fits learn, from the samples of all processes."""
        self._join_micro_batches(sites)
        mixed, self._mixed = self._mixed, {}
        calls = [
            LocalCall(site, inputs, inputs.join_micro_batches(self._join_parts)) for (site, _), inputs in mixed.items()
        ]
        return join_calls(sites, self._fits, self._corrections, calls, self._sums)

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the weight gradients of the sites that were called, with their bias correction."""
        self._take_gradients()
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
        """Read the true gradients; the function returned updates the fits and bias corrections."""
        learned, corrected = self._learning.batches, self._correcting.batches
        rate = 1 - (1 - self.correction) ** corrected
        means: dict[int, Tensor] = {}
        if learned:
            self.check_gradients_seen(sites, self._watched, self._learned)
        self._join_micro_batches(sites)
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
                    self._fits[site.index].regression.commit(self.decay, learned)

        return learn

    def discard(self) -> None:
        """Restore the fits, bias corrections, outputs and sample axes that were there before this batch."""
        before = self._before
        self._errors.outputs, self._fits = before.outputs, before.fits
        self._corrections, self._sides = before.corrections, before.sides
        self._axes.load_state_dict(before.axes)

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._axes.drop()
        for kept in (self._call_numbers, self._site_calls, self._maps, self._mixed, self._joined):
            kept.clear()
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
        """Process forward calls of sites that the pipeline has kept, as `watch` and `observe_error` would have."""
        call = ModelCall()
        self._errors.outputs = self._errors.outputs or [0]
        if whole is not None:
            self._whole[call] = whole
        self._pending[call] = [site_call for site_call in calls if site_call.inputs is not None]
        learned = [site_call for site_call in calls if site_call.gradient is not None]
        self._maps = {site_call.site: _kept_maps(site_call) for site_call in learned}
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            self._use_features(call, features)
            self._take_gradients()
        for site_call in learned:
            assert site_call.gradient is not None, "selected above"
            self._learn(call, site_call.site, site_call.gradient)

    def summed(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the gradients of `sites`, and the sums that their fits and bias corrections learn from."""
        learned = self._sums_learned_from(sites)
        return [*self._sums_of(sites), *(tensor for sums in learned for tensor in sums.tensors())]

    def shard(self, sites: Sequence[Site]) -> None:
        """Shard the gradients of `sites`, which are those of the whole batch, like their weights."""
        self._sums |= {site: sharded_like(self._sums[site], site.weight) for site in sites if site in self._sums}

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop everything: `catch_up` was given calls of these sites only."""
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
        """Return saved moments: one object for all sites with equal ones, so that they share later updates."""
        second = second.to(self._device, copy=True)
        for moments in loaded:
            if torch.equal(moments.second, second):
                return moments
        loaded.append(Moments(second, self.ridge))
        return loaded[-1]


def _kept_maps(call: SiteCall) -> KeptMaps:
    return KeptMaps(call.site, call.shape, call.kept_inputs().shape if call.observe else None)


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
