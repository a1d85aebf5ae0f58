"""Metrics per site: the quality of predictions, measured on BP batches, whose true gradients are known; and densities.

Four figures compare a prediction with the true gradient of the same batch:

- `cosine` similarity, and `norm_ratio` = |predicted| / |true|: whether an update would go the right way, and how far. A
  useful prediction has a cosine well above 0.
- `mse`, the mean squared error. It rewards predicting zero: gradients are small numbers, so a zero prediction has a small
  error.
- `mape`, the mean of |true - predicted| / |true| as in ADA-GP (1.0 = 100%), over the entries whose true value is not zero.
  It divides by numbers near zero, so a few entries dominate it; a prediction of zero scores 1.0.

`cosine_previous` is the cosine of the *last* BP batch's true gradient with this one's: the previous-gradient baseline, which
costs nothing to produce. Compare runs, not cosines: a prediction with the smaller cosine can train the better model.

Densities are the shares of non-zero weights and inputs: an accelerator for sparse training can leave out the rest.

Pairs of consecutive measured BP batches show how well single samples' gradients are predicted, and how noisy gradients are:
two batches at almost the same weights differ by their samples. With true and predicted gradients t and p of one measured batch
and t', p' of the next, each site has

- `sample_correlation`: sum <t - t', p - p'> / sqrt(sum |t - t'|^2 sum |p - p'|^2). A batch's gradients are means over
  samples, so this is the correlation rho of one sample's true and predicted gradient. Prediction can beat a smaller batch only
  if rho^2 is above the price of a GP batch in batches of backprop.
- `noise_batches`: sum |t - t'|^2 / (2 sum <t, t'>), the gradient noise scale in batches: far above 1, gradients are mostly
  noise and larger batches pay; far below 1, they hardly do (McCandlish et al., arXiv 1812.06162, with one and two batches).

Changes of the weights between the two batches count as noise, so measure often. One true gradient and one prediction of each
site are kept.
"""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import torch
from torch import Tensor

from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.layers.weights import gradient_norms, sharded_like, whole
from adagp.sources.base import indices

FIGURES = ("cosine", "norm_ratio", "mse", "mape", "cosine_previous")


class QualityMeter:
    """Sums of the five figures per site and learner, sampled on every `interval`-th BP batch (0: never).

    `learners` are the names of the sources that learn; the predictions of each have figures of their own. `noise` adds the two
    figures of `NoiseMeter`.
    """

    def __init__(
        self, sites: Sequence[Site], interval: int, learners: Sequence[str] = (), *, noise: bool = False
    ) -> None:
        if interval < 0:
            raise OptionError(f"the metrics interval is {interval}; it must be 0 (never) or more.")
        self.interval = interval
        self.learners = list(learners) or [""]
        self._sites = sites
        self._noise = NoiseMeter(sites, len(self.learners)) if noise else None
        self._batches = 0
        self._previous: dict[int, Tensor] = {}
        device = sites[0].weight.device if sites else torch.device("cpu")
        self._sums = torch.zeros(len(sites), len(self.learners), len(FIGURES), dtype=torch.float64, device=device)
        self._counts = torch.zeros_like(self._sums)

    def due(self) -> bool:
        """Return whether the coming BP batch is to be sampled."""
        return self.interval > 0 and self._batches % self.interval == 0

    def record(
        self, sites: Sequence[Site], truths: Sequence[Tensor], predictions: Sequence[Sequence[Tensor | None]]
    ) -> None:
        """Add the figures of one BP batch. `predictions` has those of each learner, or is empty in a batch not sampled."""
        self.prepare_record(sites, truths, predictions)()

    @torch.no_grad()
    def prepare_record(
        self, sites: Sequence[Site], truths: Sequence[Tensor], predictions: Sequence[Sequence[Tensor | None]]
    ) -> Callable[[], None]:
        """Compute the figures of one BP batch; return a function that adds them."""
        figures = self._figures(sites, truths, predictions) if self.due() else None
        noise = self._noise.prepare_record(sites, truths, predictions) if self._noise is not None else None
        # The previous-gradient baseline needs only the gradient before a sampled one: no copy on the other batches.
        before_sample = self.interval > 0 and (self._batches + 1) % self.interval == 0
        copied = zip(sites, truths, strict=True) if before_sample else ()
        previous = {site.index: truth.detach().clone() for site, truth in copied}

        def add() -> None:
            if figures is not None:
                chosen = indices(sites, self._sums.device)
                self._sums[chosen] += figures.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
                self._counts[chosen] += figures.isfinite()
            if noise is not None:
                noise()
            self._batches += 1
            self._previous = previous

        return add

    def _figures(
        self, sites: Sequence[Site], truths: Sequence[Tensor], predictions: Sequence[Sequence[Tensor | None]]
    ) -> Tensor:
        previous = self._against_previous(sites, truths)[:, None]
        return torch.stack(
            [torch.cat([_compare(truths, predicted), previous], dim=1) for predicted in predictions], dim=1
        )

    def read(self) -> dict[str, dict[str, float | None]]:
        """Return the mean figures of each site since the last call, None if nothing was sampled, and reset them.

        With several learners a site is listed once for each, as `site (learner)`.
        """
        means = (self._sums / self._counts).tolist()  # 0 / 0, if nothing was sampled, is NaN
        self._sums.zero_()
        self._counts.zero_()
        several = len(self.learners) > 1
        rows = {
            f"{site.name} ({learner})" if several else site.name: {
                name: None if isnan(mean) else mean for name, mean in zip(FIGURES, row, strict=True)
            }
            for site in self._sites
            for learner, row in zip(self.learners, means[site.index], strict=True)
        }
        if self._noise is not None:
            noise = self._noise.read()
            figures = (own for site in self._sites for own in noise[site.index])
            return {name: row | own for (name, row), own in zip(rows.items(), figures, strict=True)}
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, the counts and the gradients that are kept for the next sample."""
        return {
            "batches": self._batches,
            "previous": dict(self._previous),
            "sums": self._sums.clone(),
            "counts": self._counts.clone(),
            **({} if self._noise is None else {"noise": self._noise.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._batches = state["batches"]
        weights = {site.index: site.weight for site in self._sites}
        self._previous = {index: sharded_like(value, weights[index]) for index, value in state["previous"].items()}
        for target, saved in ((self._sums, state["sums"]), (self._counts, state["counts"])):
            rows = saved.view(len(self._sites), -1, len(FIGURES))  # older checkpoints have the first learner alone
            target[:, : rows.shape[1]] = rows.to(target.device)
        if self._noise is not None and "noise" in state:
            self._noise.load_state_dict(state["noise"])

    def _against_previous(self, sites: Sequence[Site], truths: Sequence[Tensor]) -> Tensor:
        pairs = [(truth, self._previous.get(site.index)) for site, truth in zip(sites, truths, strict=True)]
        return torch.stack([cosine(truth, before) for truth, before in pairs])


@torch.no_grad()
def agreement(truths: Sequence[Tensor], predictions: Sequence[Tensor | None]) -> tuple[float, float] | None:
    """Return cosine and norm ratio of all predictions with all truths, seen as one vector; None if there is no prediction.

    A prediction of zero has cosine 0.
    """
    pairs = [
        (whole(truth), whole(prediction))
        for truth, prediction in zip(truths, predictions, strict=False)
        if prediction is not None
    ]
    if not pairs:
        return None
    product = torch.stack([(truth * prediction).sum(dtype=torch.float64) for truth, prediction in pairs]).sum()
    true_norm, norm = (gradient_norms(side).double().norm() for side in zip(*pairs, strict=True))
    figures = torch.stack([product / (true_norm * norm).clamp(min=1e-300), norm / true_norm.clamp(min=1e-300)])
    found_cosine, ratio = figures.tolist()
    return found_cosine, ratio


def cosine(first: Tensor, second: Tensor | None) -> Tensor:
    """Return the cosine of the angle between two tensors seen as vectors; NaN if one is missing or zero."""
    if second is None:
        return torch.tensor(torch.nan, dtype=torch.float64, device=first.device)
    first, second = whole(first), whole(second)
    product = (first * second).sum(dtype=torch.float64)
    norms = gradient_norms([first, second]).double()
    return product / norms.prod()


def _compare(truths: Sequence[Tensor], predictions: Sequence[Tensor | None]) -> Tensor:
    """Return `(sites, 4)`: cosine, norm ratio, mean squared error, mean absolute percentage error."""
    rows = []
    for truth, prediction in ((whole(gradient), other) for gradient, other in zip(truths, predictions, strict=True)):
        if prediction is None:
            rows.append(truth.new_full((4,), torch.nan, dtype=torch.float64))
            continue
        prediction = whole(prediction)
        error = truth - prediction
        true_norm, norm = gradient_norms([truth, prediction]).double()
        mse = error.square().mean(dtype=torch.float64)
        product = (truth * prediction).sum(dtype=torch.float64)
        unknown = truth == 0
        relative = error.div_(truth).abs_().masked_fill_(unknown, 0).sum(dtype=torch.float64)
        mape = relative / (truth.numel() - unknown.sum())
        rows.append(torch.stack([product / (true_norm * norm), norm / true_norm, mse, mape]))
    return torch.stack(rows)


class DensityMeter:
    """The share of non-zero inputs of each site, sampled in every `interval`-th batch that runs (0: never); and of weights."""

    def __init__(self, sites: Sequence[Site], interval: int) -> None:
        self.interval = interval
        self._sites = sites
        self._batches = 0
        device = sites[0].weight.device if sites else torch.device("cpu")
        self._sums = torch.zeros(len(sites), 2, dtype=torch.float64, device=device)

    def due(self) -> bool:
        """Return whether the coming batch is to be sampled."""
        return self.interval > 0 and self._batches % self.interval == 0

    @torch.no_grad()
    def watch(self, site: Site, inputs: Sequence[Any]) -> None:
        """Count the inputs of a forward call that are not zero."""
        for values in inputs[:1]:
            if isinstance(values, Tensor):
                self._sums[site.index, 0] += values.count_nonzero()
                self._sums[site.index, 1] += values.numel()

    def end_batch(self) -> None:
        """Go on to the next batch."""
        self._batches += 1

    def read(self) -> dict[str, dict[str, float | None]]:
        """Return both densities of each site since the last call, None if nothing was sampled, and reset them."""
        sums = self._sums.tolist()
        self._sums.zero_()
        return {
            site.name: {"weight_density": density(site.weight), "input_density": nonzero / total if total else None}
            for site, (nonzero, total) in zip(self._sites, sums, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of the epoch so far."""
        return {"batches": self._batches, "sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._batches = state["batches"]
        self._sums.copy_(state["sums"])


def density(weight: Tensor) -> float:
    """Return the share of the entries that are not zero."""
    return float(weight.detach().count_nonzero()) / max(1, weight.numel())


NOISE_FIGURES = ("sample_correlation", "noise_batches")
_SUMS = 4
"""The number of sums: <t - t', p - p'>, |t - t'|^2, |p - p'|^2 and <t, t'>."""


class NoiseMeter:
    """Sums over pairs of consecutive measured batches, by site and learner, for the figures in `NOISE_FIGURES`."""

    def __init__(self, sites: Sequence[Site], learners: int) -> None:
        device = sites[0].weight.device if sites else torch.device("cpu")
        self._sums = torch.zeros(len(sites), learners, _SUMS, dtype=torch.float64, device=device)
        self._last: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def prepare_record(
        self, sites: Sequence[Site], truths: Sequence[Tensor], predictions: Sequence[Sequence[Tensor | None]]
    ) -> Callable[[], None]:
        """Compute the sums of a measured batch; `predictions` has those of each learner. Return a function that adds them."""
        added: dict[tuple[int, int], Tensor] = {}
        last: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for learner, predicted in enumerate(predictions):
            for site, truth, prediction in zip(sites, truths, predicted, strict=True):
                if prediction is not None:
                    key = site.index, learner
                    last[key] = whole(truth).detach().clone(), whole(prediction).detach().clone()
                    if key in self._last:
                        added[key] = _pair_sums(*last[key], *self._last[key])

        def add() -> None:
            for key, sums in added.items():
                self._sums[key] += sums
            self._last |= last

        return add

    def read(self) -> list[list[dict[str, float | None]]]:
        """Return the figures by site and learner since the last call, None if they are not known, and reset them."""
        rows = self._sums.tolist()
        self._sums.zero_()
        return [[_figures(*sums) for sums in learners] for learners in rows]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and the last measured batch."""
        return {"sums": self._sums.clone(), "last": dict(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._sums.copy_(state["sums"])
        self._last = dict(state["last"])


def _pair_sums(truth: Tensor, prediction: Tensor, before: Tensor, predicted_before: Tensor) -> Tensor:
    true_change, change = truth - before, prediction - predicted_before
    pairs = ((true_change, change), (true_change, true_change), (change, change), (truth, before))
    return torch.stack([_dot(*pair) for pair in pairs])


def _figures(product: float, truth: float, predicted: float, consecutive: float) -> dict[str, float | None]:
    correlation = product / (truth * predicted) ** 0.5 if truth > 0 and predicted > 0 else None
    scale = truth / (2 * consecutive) if consecutive > 0 else None
    return dict(zip(NOISE_FIGURES, (correlation, scale), strict=True))


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return (first.double() * second.double()).sum()
