"""How well single samples' gradients are predicted, and how noisy gradients are, from minibatches at one point of a run.

For true and predicted gradients t and p of minibatches of b samples, with means T and P over the minibatches:

correlation    sum <t - T, p - P> / sqrt(sum |t - T|^2 sum |p - P|^2). A minibatch's gradients are means over independent
               samples, so their covariances are those of one sample divided by b, and the correlation is that of one sample's.
noise_scale    the critical batch size tr(S) / |G|^2, with S the covariance of one sample's gradient and G its mean: unbiased
               estimates of both from gradients of b and of K b samples (McCandlish et al., arXiv 1812.06162, appendix A.1).

Batch normalisation couples the samples of a minibatch: then the figures are those of this batch size. Sums are over sites, so
that the figures are those of all weights together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

NOISE = ("correlation", "noise_scale")
"""The figures of all weights together at one point of a run."""


@dataclass
class _Moments:
    """Sums over minibatches of a site's gradients, and of their squared norms and products."""

    truth: Tensor
    predicted: Tensor
    truth_square: float = 0.0
    predicted_square: float = 0.0
    product: float = 0.0

    def add(self, truth: Tensor, predicted: Tensor | None) -> None:
        self.truth += truth
        self.truth_square += _dot(truth, truth)
        if predicted is not None:
            self.predicted += predicted
            self.predicted_square += _dot(predicted, predicted)
            self.product += _dot(truth, predicted)


@dataclass
class NoiseStatistics:
    """Adds up minibatches of `batch_size` samples."""

    batch_size: int
    count: int = 0
    predictions: int = 0
    _moments: list[_Moments] = field(default_factory=list)

    def add(self, truths: Sequence[Tensor], predictions: Sequence[Tensor | None] | None) -> None:
        """Add the sites' gradients of one minibatch; `predictions` is None if there are none."""
        if not self._moments:
            self._moments = [_Moments(torch.zeros_like(truth), torch.zeros_like(truth)) for truth in truths]
        complete = predictions is not None and all(predicted is not None for predicted in predictions)
        for moments, truth, predicted in zip(self._moments, truths, predictions or [None] * len(truths), strict=True):
            moments.add(truth, predicted if complete else None)
        self.count += 1
        self.predictions += complete

    def figures(self) -> dict[str, float | None]:
        """Return the correlation and the noise scale of all weights together; None where they are not known."""
        return {"correlation": self.correlation(), "noise_scale": self.noise_scale()}

    def correlation(self) -> float | None:
        """Return the correlation of one sample's true and predicted gradient."""
        number = self.count
        if number < 2 or self.predictions < number:
            return None
        sums = [
            (
                moments.truth_square - _dot(moments.truth, moments.truth) / number,
                moments.predicted_square - _dot(moments.predicted, moments.predicted) / number,
                moments.product - _dot(moments.truth, moments.predicted) / number,
            )
            for moments in self._moments
        ]
        truth, predicted, product = (sum(column) for column in zip(*sums, strict=True))
        return product / sqrt(truth * predicted) if truth > 0 and predicted > 0 else None

    def noise_scale(self) -> float | None:
        """Return the critical batch size in samples; None if the gradient does not stand out of the noise."""
        number = self.count
        if number < 2:
            return None
        small = sum(moments.truth_square for moments in self._moments) / number
        large = sum(_dot(moments.truth, moments.truth) for moments in self._moments) / number**2
        gradient, noise = two_batch_sizes(small, large, self.batch_size, number * self.batch_size)
        return noise / gradient if gradient > 0 else None


def two_batch_sizes(small: float, large: float, small_batch: int, large_batch: int) -> tuple[float, float]:
    """Return unbiased estimates of |G|^2 and tr(S) from the mean squared norms of gradients of two batch sizes."""
    gradient = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    noise = (small - large) / (1 / small_batch - 1 / large_batch)
    return gradient, noise


def _dot(first: Tensor, second: Tensor) -> float:
    return float((first.double() * second.double()).sum())
