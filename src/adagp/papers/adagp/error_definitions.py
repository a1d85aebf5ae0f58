"""Ways to express the predictor's error in percent, and a source that measures all of them while it learns.

The paper reports a mean absolute percentage error (MAPE) of 0.16% or less and does not define it. Here |t| is a true, |p| a
predicted value of a weight's gradient; means are over the entries of a weight.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.papers.adagp.source import PredictedSource
from adagp.sources.learned import LearningOptions

TORCHMETRICS_EPSILON = 1.17e-6
"""The smallest denominator of torchmetrics' MeanAbsolutePercentageError."""


def _by_entry(truth: Tensor, prediction: Tensor) -> Tensor:
    known = truth != 0
    return ((truth - prediction).abs()[known] / truth.abs()[known]).mean()


def _clamped(truth: Tensor, prediction: Tensor) -> Tensor:
    return ((truth - prediction).abs() / truth.abs().clamp(min=TORCHMETRICS_EPSILON)).mean()


def _by_mean(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).abs().mean() / truth.abs().mean()


def _of_means(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth.abs().mean() - prediction.abs().mean()).abs() / truth.abs().mean()


def _by_largest(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).abs().mean() / truth.abs().max()


def _symmetric(truth: Tensor, prediction: Tensor) -> Tensor:
    total = truth.abs() + prediction.abs()
    known = total != 0
    return (2 * (truth - prediction).abs()[known] / total[known]).mean()


def _plus_one(truth: Tensor, prediction: Tensor) -> Tensor:
    return ((truth - prediction).abs() / (1 + truth.abs())).mean()


def _absolute(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).abs().mean()


def _squared(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).square().mean()


DEFINITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean of |t-p|/|t|": _by_entry,
    "mean of |t-p|/max(|t|, 1.17e-6)": _clamped,
    "mean |t-p| / mean |t|": _by_mean,
    "difference of mean |t| and mean |p| / mean |t|": _of_means,
    "mean |t-p| / max |t|": _by_largest,
    "mean of 2|t-p|/(|t|+|p|)": _symmetric,
    "mean of |t-p|/(1+|t|)": _plus_one,
    "mean |t-p|, no denominator": _absolute,
    "mean (t-p)^2, no denominator": _squared,
}


class MeasuredSource(PredictedSource):
    """ADA-GP's source, which compares each prediction with the true gradient by every definition before it learns."""

    def __init__(self, options: LearningOptions | None = None, every: int = 1) -> None:
        super().__init__(options)
        self.every = every
        self.errors: dict[str, list[Tensor]] = {}
        self.zeros: dict[str, list[Tensor]] = {}
        self._batches = 0

    def prepare_learning(self, sites: Sequence[Site], truths: Sequence[Tensor]) -> Callable[[], None]:
        """Measure the errors of every `every`-th batch, then learn."""
        if self._batches % self.every == 0:
            for site, truth, prediction in zip(sites, truths, self.produce(sites), strict=True):
                if prediction is not None:
                    self.errors.setdefault(site.name, []).append(figures(truth, prediction))
                    self.zeros.setdefault(site.name, []).append(figures(truth, torch.zeros_like(truth)))
        self._batches += 1
        return super().prepare_learning(sites, truths)


@torch.no_grad()
def figures(truth: Tensor, prediction: Tensor) -> Tensor:
    """Return the error by each definition, in percent."""
    return torch.stack([100 * definition(truth, prediction) for definition in DEFINITIONS.values()])
