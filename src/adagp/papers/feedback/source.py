"""Gradients from the output's error: each site's output gradient is regressed on it, without a chain through the layers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Size, Tensor

from adagp.errors import OptionError
from adagp.layers.shards import blank, laid_like
from adagp.layers.sites import Site
from adagp.papers.feedback.error_features import ErrorFeatures, rows_for
from adagp.papers.feedback.joint import Asked, join_calls
from adagp.papers.feedback.reference import Reference, known, references_in
from adagp.papers.feedback.regression import FeatureRows, Moments, modern
from adagp.papers.feedback.sample_axes import SampleAxes
from adagp.papers.feedback.site_regression import SiteRegression, as_rows, lies_channels_last
from adagp.papers.feedback.turns import Turns
from adagp.sources.base import BatchContext, ModelCall, Rounds, RunFacts, missing_error
from adagp.sources.support.local import Kept, LocalSource, refuse_recomputed
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.taps import on_gradient


@dataclass(frozen=True)
class Seen:
    """What was seen of one forward call of a site: its input and its output's gradient, if they were wanted.

    `predicts` says that its weight gradient is to be predicted, `corrects` that the call shows what predictions lack.
    """

    site: Site
    shape: Size
    inputs: Kept | None = None
    gradient: Tensor | None = None
    predicts: bool = False
    corrects: bool = False


class FeedbackSource(LocalSource):
    """Predicts each site's output gradient from the loss's gradient at the model's output, by running least squares.

    In BP batches it sees both; `decay` forgets old batches and `ridge` (times the mean second moment) steadies the fit. In
    GP batches the loss is differentiated at the output only, and each site's weight gradient is taken locally from its
    input and the predicted output gradient. All sites are independent of each other.

    At most `features` numbers of the error are used, a random projection of it where it has more. The work beyond the
    forward pass is in proportion to them: (features + 2) / samples of what the true weight gradient takes.

    A linear fit errs in the same direction batch after batch, which adds up as noise does not. So what predictions lack in BP
    batches, as a running mean that moves by `correction` a batch, is added in GP batches (`Reference`).

    It learns in one of `learn_every` BP batches, and corrects itself in one of `correct_every`: less of either is cheaper. What
    is forgotten, and by how much the correction moves, still goes by the number of BP batches.
    """

    learns = True
    needs_error = True
    joins = True
    takes_spread = True

    def __init__(
        self,
        features: int = 64,
        decay: float = 0.95,
        ridge: float = 1e-3,
        correction: float = 0.3,
        learn_every: int = 1,
        correct_every: int = 1,
        seed: int = 0,
    ) -> None:
        if features < 1:
            raise OptionError(f"feedback uses {features} features of the error; it must use 1 or more.")
        if not 0 <= decay < 1:
            raise OptionError(f"feedback's decay is {decay}; it must be 0 or more and below 1.")
        if not ridge > 0:
            raise OptionError(f"feedback's ridge is {ridge}; it must be above 0.")
        if not 0 <= correction <= 1:
            raise OptionError(f"feedback's correction moves by {correction}; it must be 0 (none) to 1.")
        if learn_every < 1:
            raise OptionError(f"feedback learns in one of {learn_every} BP batches; it must be one of 1 or more.")
        if correct_every < 1:
            raise OptionError(
                f"feedback corrects itself in one of {correct_every} BP batches; it must be one of 1 or more."
            )
        super().__init__("feedback")
        self.decay = decay
        self.ridge = ridge
        self.correction = correction
        self._errors = ErrorFeatures(features, seed)
        self._axes = SampleAxes()
        self._fits: dict[int, SiteRegression] = {}
        self._references: dict[int, Reference] = {}
        self._call = ModelCall()
        self._pending: dict[ModelCall, list[Seen]] = {}
        self._features: dict[ModelCall, Tensor] = {}
        self._whole: dict[ModelCall, Tensor] = {}
        self._rows: dict[tuple[Any, ...], FeatureRows] = {}
        self._none: Moments | None = None
        self._learning = Turns(learn_every)
        self._correcting = Turns(correct_every)
        self._blind: set[int] = set()
        self._taught: set[int] = set()

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the run's seed and the options of its method."""
        return cls(**options, seed=run.seed)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Refuse layers whose gradient cannot be taken locally."""
        super().bind(sites, norms)
        self._sites = {site.index: site for site in sites}
        self._device = sites[0].weight.device

    def begin(self, context: BatchContext) -> None:
        """Keep what is known of the batch."""
        self._context = context

    def enter(self, call: ModelCall) -> None:
        """Keep the call: each has errors of its own."""
        self._call = call

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input; wait for the true gradient at the output of a site that is trained by backprop."""
        served, call = site in self._context.replaced, self._call
        predicts, corrects = served or self._context.measured, self.wants_inputs and not served
        teaches = self.wants_gradients and not served
        waits = teaches and output.requires_grad
        seen = Seen(site, output.shape, Kept(site, inputs) if predicts or corrects else None, predicts=predicts)
        if predicts or (corrects and not waits):
            self._pending.setdefault(call, []).append(replace(seen, corrects=corrects and not waits))
        if teaches:
            self._axes.keep(site, output)
        if teaches and not waits and not torch.is_grad_enabled():
            self._blind.add(site.index)
        if not waits:
            return None

        def receive(gradient: Tensor) -> None:
            if not call.known:
                raise missing_error(self._name)
            self._settled(call)
            with torch.autocast(self._device.type, enabled=False):
                if corrects:
                    self._note(call, seen)  # now, as the backward pass is about to read the same input
                self._learn(call, site, gradient)

        return on_gradient(output, receive)

    @property
    def wants_inputs(self) -> bool:
        """Whether it takes note of the inputs of this batch's sites that are trained by backprop."""
        return bool(self.correction and self._correcting.due)

    @property
    def wants_gradients(self) -> bool:
        """Whether it learns from the output gradients of this batch."""
        return self._learning.due

    def catch_up(self, features: Tensor, seen: Sequence[Seen], whole: Tensor | None = None) -> None:
        """Take in a forward call that somebody else has watched, with the `features` of its errors, as `watch` would have.

        If its samples are a part of the batch, `whole` are the features of all of it: gradients, and what is learned
        (`partial_sums`), are then to be added up over all parts.
        """
        call = ModelCall()
        call.open([features.shape])
        call.receive(0, features)
        if whole is not None:
            self._whole[call] = whole
        self._pending[call] = [one for one in seen if one.inputs is not None]
        self._settled(call)
        for one in seen:
            if one.gradient is not None:
                self._learn(call, one.site, one.gradient)

    def partial_sums(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the gradients of `sites` and what is to be learned of them, to be added up in place over parts of a batch."""
        fits = [self._fits[site.index].regression.sums for site in sites if site.index in self._fits]
        references = [self._references[site.index].sums for site in sites if site.index in self._references]
        return [*self._sums_of(sites), *(one for sums in (*fits, *references) for one in sums.waiting())]

    def lay_out(self, sites: Sequence[Site]) -> None:
        """Spread the gradients of `sites`, which are those of the whole batch now, as their weights are."""
        self._sums |= {site: laid_like(self._sums[site], site.weight) for site in sites if site in self._sums}

    def features_of(self, errors: Sequence[Tensor]) -> Tensor:
        """Return the features of the errors at the model's outputs, samples first."""
        return self._errors.of_several(errors)

    def _learn(self, call: ModelCall, site: Site, gradient: Tensor) -> None:
        rows = self._rows_of(call, site, gradient.shape)
        if site.index not in self._fits:
            self._fits[site.index] = SiteRegression.fresh(site, self._no_moments(rows), gradient)
        self._taught.add(site.index)
        self._fits[site.index].learn(rows, gradient, self._context.scale)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Find out which axis of the sites' outputs counts the samples, where their sizes do not tell."""
        self._axes.settle(outputs)

    def observe_error(self, call: ModelCall) -> None:
        """Take the weight gradients of the sites whose inputs are kept, if that has not been done."""
        self._settled(call)

    def _settled(self, call: ModelCall) -> None:
        """Take the weight gradients of the sites in a call, once its errors are known."""
        if call in self._features:
            return
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            self._features[call] = self._errors.of_call(call)
            if self._context.several:
                return  # `join` does it, for the samples of all processes
            for one in self._pending.pop(call, []):
                if one.predicts:
                    self._predict(call, one)
                if one.corrects:
                    self._note(call, one)

    def _predict(self, call: ModelCall, seen: Seen) -> None:
        """Add the weight gradient of one forward call of a site."""
        site, fit = seen.site, self._fits.get(seen.site.index)
        if fit is None:
            self.add(site, torch.zeros_like(blank(site.weight)))  # no true gradient was seen yet
            return
        reference = None if site in self._sums else known(self._references, site)  # once a batch, not once a call
        rows = self._rows_of(call, site, seen.shape)
        self.add(site, fit.weight_gradient(_inputs_of(seen), rows, seen.shape, reference))

    def _note(self, call: ModelCall, seen: Seen) -> None:
        """Let the site's reference take note of one forward call by backprop."""
        reference = self._references.setdefault(seen.site.index, Reference())
        inputs = _inputs_of(seen).detach()
        rows = as_rows(seen.site, inputs, lies_channels_last(inputs))
        reference.sums.add(self._rows_of(call, seen.site, seen.shape), rows)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Take the weight gradients, and what the fits learn, from the samples of all processes."""
        asked: list[Asked] = []
        for call in self._features:
            for one in self._pending.pop(call, []):
                if one.predicts:
                    rows = self._rows_of(call, one.site, one.shape)
                    asked.append(Asked(one.site, _inputs_of(one), one.shape, rows))
                if one.corrects:
                    self._note(call, one)
        unknown = [one.site for one in asked if one.site.index not in self._fits]  # no true gradient was seen yet
        self._sums |= {site: torch.zeros_like(site.weight) for site in unknown}
        return join_calls(sites, self._fits, self._references, asked, self._sums)

    def _rows_of(self, call: ModelCall, site: Site, shape: Size) -> FeatureRows:
        """Return the features of a call's errors as a site needs them; sites alike share theirs."""
        by_position = site.rule.kind == "linear" and len(shape) > 2
        features = self._features[call]
        axis = self._axes.of(site, shape, features.shape)
        key = (call, by_position, axis, shape[:-1] if by_position else shape[:1])
        if key not in self._rows:
            whole = self._whole.get(call)
            if whole is not None:
                every = Size((*shape[:axis], len(whole), *shape[axis + 1 :]))
                whole = rows_for(site, every, whole, axis)
            self._rows[key] = FeatureRows(rows_for(site, shape, features, axis), whole=whole)
        return self._rows[key]

    def _no_moments(self, rows: FeatureRows) -> Moments:
        """Return the moments of sites that have seen nothing yet."""
        features = rows.mean.shape[1]
        if self._none is None or self._none.second.shape[1] != features:
            self._none = Moments.none(features, self.ridge, rows.mean.device)
        return self._none

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the weight gradients of the sites that were called, with what they usually lack."""
        usual = [None if site.index not in self._references else self._references[site.index].truth for site in sites]
        return [
            found if found is None or truth is None else found + truth
            for found, truth in zip(super().produce(sites), usual, strict=True)
        ]

    @torch.no_grad()
    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Learn from the output gradients that came by in the backward pass, and from what predictions lack."""
        learned, corrected = self._learning.take(), self._correcting.take()
        if not learned and not corrected:
            return
        for site, truth in zip(sites, gradients, strict=True):
            refuse_recomputed(site, blind=site.index in self._blind, seen=site.index in self._taught)
            fit = self._fits.get(site.index)
            if fit is None:
                continue
            if corrected and site.index in self._references:
                self._references[site.index].commit(truth, 1 - (1 - self.correction) ** corrected)
            fit.regression.commit(self.decay**learned)

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._axes.drop()
        self._pending.clear()
        self._features.clear()
        self._whole.clear()
        self._rows.clear()
        self._blind.clear()
        self._taught.clear()
        for fit in self._fits.values():
            fit.regression.drop()
        for reference in self._references.values():
            reference.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments of each site, and what its predictions lacked."""
        return {
            "fits": {index: fit.state_dict() for index, fit in self._fits.items()},
            "references": {index: one.state_dict() for index, one in self._references.items()},
            "outputs": list(self._errors.outputs),
            "sample_axes": self._axes.state_dict(),
            "waiting": [self._learning.waiting, self._correcting.waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        shared: list[Moments] = []
        self._fits = {
            index: SiteRegression.restored(self._sites[index], fit, self._shared(fit["second"], shared))
            for index, fit in ((index, modern(fit)) for index, fit in state["fits"].items())
        }
        self._learning.waiting, self._correcting.waiting = state.get("waiting", (0, 0))
        self._errors.outputs = list(state.get("outputs", ()))  # older checkpoints have none: there was one output
        self._axes.load_state_dict(state.get("sample_axes", {}))
        self._references = {
            index: self._restored(self._sites[index], one) for index, one in references_in(state).items()
        }

    def _restored(self, site: Site, state: dict[str, Any]) -> Reference:
        """Return the reference of a site whose `state_dict` this was, here."""
        here = {name: one if one is None else one.to(self._device, copy=True) for name, one in state.items()}
        if here["truth"] is not None:
            here["truth"] = laid_like(here["truth"], site.weight)
        return Reference.restored(here)

    def part_of_state(self, sites: Collection[int]) -> dict[str, Any]:
        """Return what was learned of some sites, by their index, as `state_dict` does."""
        state = self.state_dict()
        for name in ("fits", "references", "sample_axes"):
            state[name] = {index: one for index, one in state[name].items() if index in sites}
        return state

    def adopt_state(self, part: dict[str, Any]) -> None:
        """Take over what another process has learned of some sites: its `part_of_state`."""
        state = self.state_dict()
        for name in ("fits", "references", "sample_axes"):
            state[name] |= part[name]
        self.load_state_dict(state)

    def _shared(self, second: Tensor, known: list[Moments]) -> Moments:
        """Return saved moments, the same ones for all sites that have the same."""
        second = second.to(self._device, copy=True)
        for moments in known:
            if torch.equal(moments.second, second):
                return moments
        known.append(Moments(second, self.ridge))
        return known[-1]


def _inputs_of(seen: Seen) -> Tensor:
    assert seen.inputs is not None, "what predicts or corrects has its input"
    return seen.inputs.get()
