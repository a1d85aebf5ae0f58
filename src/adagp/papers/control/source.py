"""Control: predictions as a control variate inside a batch. A share of it is trained by backprop and predicted, the rest is
predicted only:

    gradient  =  mean over the share (true - c predicted)  +  mean over all (c predicted)
              =  T  +  (1 - f) c (P' - P)

T and P are the true and the predicted gradient of the share f, P' is the prediction for the rest. Whatever the predictions
are, P and P' have the same mean over random splits, so the gradient is that of backprop on average; good predictions make its
noise smaller. (A prediction that depends on the size of its part, other than by a mean over samples, has the same mean only
for parts of one size, f = 1/2.)

The factor c is the one that makes the noise least, Cov(T, P) / Var(P) of each site, measured in earlier batches; 1 as published
would add noise where predictions are poor.

Samples need not be drawn alike. With `select="error"` all are predicted first, and a sample is trained by backprop with a
probability p that grows with its error at the output. In T and P it then counts 1 / p times, which keeps
both right on average; P' - P becomes what P lacks of the prediction for all.
The norm of a sample's gradient is about that of its error at the output, times a factor that is much the same for all samples:
sampling by the error's norm is near to sampling by the gradient's, which makes the noise of a mean least.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Size, Tensor

from adagp.core.break_even import best_share, noise_limited_cost
from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.layers.weights import whole
from adagp.papers.control.options import ERROR, RANDOM, parse_predictor, read_share
from adagp.sources.base import (
    BatchContext,
    ModelCall,
    RunFacts,
    RunningNorms,
    Source,
    SplitSource,
    build_source,
    step_generator,
)
from adagp.sources.demand import Demand, TrialCall, chain_macs, weight_bytes, weight_gradient_macs
from adagp.sources.mixed import MixedSource

SMALLEST_SHARE = 1 / 8
"""Shares are multiples of this: few sizes of parts, and never so few true samples that the fit starves."""
UNIFORM_SHARE = 0.2
"""Part of the probability that all samples share alike, so that no weight exceeds that of plain sampling five times."""


def rounded_share(rho_squared: float, price: float) -> float:
    """Return the multiple of `SMALLEST_SHARE` with the least noise at equal cost: 1 if prediction does not pay."""
    rho_squared = min(max(rho_squared, 0.0), 1.0)
    steps = round(1 / SMALLEST_SHARE)
    below = int(best_share(rho_squared, price) * steps)
    nearest = {max(1, min(steps, below + up)) / steps for up in (0, 1)}
    return min(nearest, key=lambda share: noise_limited_cost(rho_squared, price, share))


def sample_norms(errors: Sequence[Tensor | None]) -> Tensor:
    """Return the norm of each sample's error over all outputs of a forward call; samples are the first axis."""
    squares = [error.float().flatten(1).square().sum(1) for error in errors if error is not None]
    return torch.stack(squares).sum(0).sqrt()


def draw_by_norm(norms: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` samples, those with large norms more often; return their indices, and the weight of each.

    The weights are those in a mean over the drawn samples: with them its expectation is the mean over all samples.
    """
    chances = inclusion_chances(norms.double().cpu(), count)
    order = torch.randperm(len(chances), generator=generator)
    # Systematic sampling: a comb of distance 1 with a random offset, over the chances laid end to end.
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    teeth = (chances[order].cumsum(0) - offset).ceil().clamp(0, count)
    teeth[-1] = count  # rounding of the sum must not lose the last tooth
    drawn = order[teeth.diff(prepend=teeth.new_zeros(1)) > 0].sort().values
    return drawn, (len(drawn) / len(chances) / chances[drawn]).float()


def inclusion_chances(norms: Tensor, count: int) -> Tensor:
    """Return the probability of each sample to be among `count` drawn ones: they add up to it, and none is above 1."""
    total = norms.sum()
    even = torch.full_like(norms, 1 / len(norms))
    scores = UNIFORM_SHARE * even + (1 - UNIFORM_SHARE) * (norms / total if total > 0 else even)
    certain = torch.zeros_like(norms, dtype=torch.bool)
    while True:
        left = count - int(certain.sum())
        chances = torch.where(certain, 1.0, left * scores / scores[~certain].sum())
        above = (chances > 1) & ~certain
        if not above.any():
            return chances
        certain |= above


MEASURE_EVERY = 5
"""While no batch is split (before the first split, or if splitting does not pay), every Nth BP batch is measured."""


class ControlSource(MixedSource, SplitSource):
    """Splits each batch that it serves; `predictor` is what predicts, any source that learns from BP batches.

    `true_share` is the share f, None for the best one by the measured correlation and the `price` of a sample that is predicted
    only. `coefficient` is the factor c, None for the measured one. Which samples are in the share is a function of `seed` and
    step.
    """

    def __init__(
        self,
        predictor: Source | None = None,
        true_share: float | None = 0.5,
        price: float = 0.4,
        coefficient: float | None = None,
        seed: int = 0,
        select: str = RANDOM,
    ) -> None:
        predictor = predictor or read_predictor("feedback:correction=0", RunFacts(seed))
        if not predictor.learns:
            raise OptionError("control needs a predictor that learns from BP batches and predicts for others.")
        super().__init__([(predictor, 1.0)])
        self.selects = select == ERROR
        if self.selects:
            _check_selection(predictor, true_share)
        self.true_share = true_share
        self.price = price
        self.coefficient = coefficient
        self.seed = seed
        self._batches = 0
        # Of the running batch: predictions for samples that are trained by backprop, and the factors for it.
        self._predicted: dict[Site, Tensor] = {}
        self._factors: list[float] = []
        self._error_norms: list[Tensor] = []

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the options of its method, two of them in text form."""
        predictor, share = read_predictor(options["predictor"], run), read_share(options["true_share"])
        return cls(predictor, share, options["price"], options["coefficient"], run.seed, options["select"])

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Bind the predictor to the sites."""
        super().bind(sites, norms)
        self._covariances = GradientCovariances(sites)

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand | None:
        """Return what a split batch takes: backprop and predictions for the share, predictions for the rest.

        None if the share depends on what is measured in training.
        """
        if self.true_share is None:
            return None
        predictor, rest_share = self.parts[0][0], 1.0 if self.selects else 1 - self.true_share
        whole_batch = predictor.demand(calls, outputs)
        trained = predictor.demand(_part(calls, self.true_share), outputs)
        rest = predictor.demand(_part(calls, rest_share), outputs)
        if whole_batch is None or trained is None or rest is None:
            return None
        forward, weights = weight_gradient_macs(calls), weight_bytes(calls)
        backprop = round(self.true_share * (forward + chain_macs(calls)))
        second_pass = round((self.true_share + rest_share - 1) * forward)
        measured = weights if self._uses_measurements else 0
        return Demand(
            state=whole_batch.state + 2 * measured,  # the last true gradient, and its prediction
            bp_bytes=whole_batch.bp_bytes + 2 * measured,
            gp_bytes=rest.gp_bytes + trained.bp_bytes + 2 * weights,
            bp_macs=whole_batch.bp_macs,
            gp_macs=second_pass + backprop + trained.bp_macs + trained.gp_macs + rest.gp_macs,
        )

    @property
    def measures(self) -> bool:
        """Whether predictions are compared in the coming BP batch, although it is not split."""
        return self._uses_measurements and self._batches % MEASURE_EVERY == 0

    @property
    def _uses_measurements(self) -> bool:
        return self.true_share is None or self.coefficient is None

    def share(self) -> float:
        """Return the share of the next batch to train by backprop."""
        if self.true_share is not None:
            return self.true_share
        return rounded_share(self._covariances.rho_squared(), self.price)

    def split(self, step: Step, samples: int) -> tuple[Tensor, Tensor] | None:
        """Draw the samples to train by backprop; None: all."""
        count = max(1, round(self.share() * samples))
        # Before this batch is measured: a factor that depended on its samples would bias the gradient.
        self._factors = self._covariances.factors()
        if count >= samples:
            return None
        order = torch.randperm(samples, generator=step_generator(self.seed, step))
        return order[:count].sort().values, order[count:].sort().values

    def observe_error(self, call: ModelCall) -> None:
        """Pass the errors to the predictor; keep their norms if samples are selected by them."""
        super().observe_error(call)
        if self.selects and self._is_predicted_only:
            self._error_norms.append(sample_norms(call.errors))

    def select(self, step: Step) -> tuple[Tensor, Tensor]:
        """Draw the samples to train by backprop by the norms of their errors; return also how much each counts."""
        norms = torch.cat(self._error_norms)
        self._error_norms = []
        count = max(1, round(self.share() * len(norms)))
        return draw_by_norm(norms, count, step_generator(self.seed, step))

    def begin(self, context: BatchContext) -> None:
        """Begin the batch, or a part of it."""
        super().begin(context)
        self._is_predicted_only = bool(context.replaced)

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the predictions; keep those for samples that are trained by backprop until the truth is known."""
        gradients = super().produce(sites)
        if not self._is_predicted_only and self._uses_measurements:
            by_site = zip(sites, gradients, strict=True)
            self._predicted = {site: gradient for site, gradient in by_site if gradient is not None}
        return gradients

    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Return a function that measures how predictions vary with the true gradients, and lets the predictor learn."""
        predicted, learn = self._predicted, super().prepare_learning(sites, gradients)
        true = {
            site: gradient.detach().clone()
            for site, gradient in zip(sites, gradients, strict=True)
            if site in predicted
        }

        def update() -> None:
            self._batches += 1
            self._covariances.update(predicted, true)
            learn()

        return update

    def corrections(
        self, sites: Sequence[Site], predicted: Sequence[Tensor], predicted_rest: Sequence[Tensor], share: float
    ) -> list[Tensor]:
        """Return (1 - f) c (P' - P) of each site."""
        factors = [self._factors[site.index] if self.coefficient is None else self.coefficient for site in sites]
        relative_size = share / (1 - share) if self.parts[0][0].sums_samples else 1.0
        return [
            (rest * relative_size - part).mul_((1 - share) * factor)
            for rest, part, factor in zip(predicted_rest, predicted, factors, strict=True)
        ]

    def forget(self) -> None:
        """Drop what was kept of this batch, or of a part of it."""
        super().forget()
        self._predicted = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the predictor's state, and what was measured."""
        measured = {"batches": self._batches, "covariances": self._covariances.state_dict()}
        return super().state_dict() | measured

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._batches = state["batches"]
        self._covariances.load_state_dict(state["covariances"])


class GradientCovariances:
    """Running moments of true gradients T and predictions P over samples, site by site.

    They are moments of the differences from one measured batch to the next, in which the mean gradient, which is not noise,
    cancels. The noise of a difference has twice the variance of a batch's. That does not change the ratios that are used: they
    are those of single samples.
    """

    def __init__(self, sites: Sequence[Site], decay: float = 0.9) -> None:
        device = sites[0].weight.device if sites else torch.device("cpu")
        self.decay = decay
        self._moments = torch.zeros(len(sites), 3, dtype=torch.float64, device=device)  # of T T, T P and P P
        self._previous: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def update(self, predicted: dict[Site, Tensor], true: dict[Site, Tensor]) -> None:
        """Add a batch; sites without a prediction are left out."""
        for site, prediction in predicted.items():
            if site not in true:
                continue
            current = whole(true[site]), whole(prediction).clone()
            if site.index in self._previous:
                true_change, predicted_change = (
                    new - old for new, old in zip(current, self._previous[site.index], strict=True)
                )
                pairs = _pairs(true_change, predicted_change)
                products = [(left * right).sum(dtype=torch.float64) for left, right in pairs]
                self._moments[site.index] *= self.decay
                self._moments[site.index] += (1 - self.decay) * torch.stack(products)
            self._previous[site.index] = current

    def factors(self) -> list[float]:
        """Return Cov(T, P) / Var(P) of each site, from 0 to 1; 0 for a site without a measurement."""
        moments = self._moments
        return (moments[:, 1] / moments[:, 2].clamp(min=1e-300)).clamp(0, 1).tolist()

    def rho_squared(self) -> float:
        """Return the share of the variance of all true gradients that predictions explain, each site's times its factor."""
        truth, both, guess = self._moments.unbind(1)
        factors = (both / guess.clamp(min=1e-300)).clamp(0, 1)
        explained = (2 * factors * both - factors.square() * guess).sum()
        return float(explained / truth.sum().clamp(min=1e-300))

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, and the gradients of the batch that was measured last."""
        return {"moments": self._moments.clone(), "previous": dict(self._previous)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._moments.copy_(state["moments"])
        device = self._moments.device
        self._previous = {
            index: (truth.to(device, copy=True), guess.to(device, copy=True))
            for index, (truth, guess) in state["previous"].items()
        }


def _pairs(truth: Tensor, guess: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(truth, truth), (truth, guess), (guess, guess)]


def _part(calls: Sequence[TrialCall], share: float) -> list[TrialCall]:
    """Return the calls of a `share` of the batch: the first axis counts samples, or a multiple of them."""
    return [
        replace(
            call,
            inputs=Size((max(1, round(share * call.inputs[0])), *call.inputs[1:])),
            output=Size((max(1, round(share * call.output[0])), *call.output[1:])),
            macs=round(share * call.macs),
        )
        for call in calls
    ]


def _check_selection(predictor: Source, true_share: float | None) -> None:
    if not predictor.needs_error:
        raise OptionError(
            "select='error' needs a predictor that sees the errors at the model's output, such as feedback; this one does not."
        )
    if true_share is None:
        raise OptionError("true_share='auto' is for samples drawn at random; give a number with select='error'.")


def read_predictor(text: str, run: RunFacts) -> Source:
    """Return the source that `text` names: a method, and options of it, as in `feedback:correction=0,features=32`."""
    method, options = parse_predictor(text)
    return build_source(method, run, options)
