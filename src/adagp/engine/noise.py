"""How well single samples' gradients are predicted, and how noisy gradients are, from consecutive measured BP batches.

Two batches at almost the same weights differ by their samples. With true and predicted gradients t and p of one measured batch
and t', p' of the next, each site has

- `sample_correlation`: sum <t - t', p - p'> / sqrt(sum |t - t'|^2 sum |p - p'|^2). A batch's gradients are means over
  samples, so this is the correlation rho of one sample's true and predicted gradient. Prediction can beat a smaller batch only
  if rho^2 is above the price of a GP batch in batches of backprop.
- `noise_batches`: sum |t - t'|^2 / (2 sum <t, t'>), the gradient noise scale in batches: far above 1, gradients are mostly
  noise and larger batches pay; far below 1, they hardly do (McCandlish et al., arXiv 1812.06162, with one and two batches).

What the weights move in between counts as noise: measure often. One true gradient and one prediction of each site are kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.layers.weights import whole

NOISE_FIGURES = ("sample_correlation", "noise_batches")
_SUMS = 4
"""Products of the differences, squares of both, and the product of consecutive true gradients."""


class NoiseMeter:
    """Sums over pairs of consecutive measured batches, by site and learner."""

    def __init__(self, sites: Sequence[Site], learners: int) -> None:
        device = sites[0].weight.device if sites else torch.device("cpu")
        self._sums = torch.zeros(len(sites), learners, _SUMS, dtype=torch.float64, device=device)
        self._last: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def prepare_record(
        self, sites: Sequence[Site], truths: Sequence[Tensor], predictions: Sequence[Sequence[Tensor | None]]
    ) -> Callable[[], None]:
        """Compute the sums of a measured batch, of which `predictions` has those of each learner; return what adds them."""
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
        """Return the figures by site and learner since the last call, None where they are not known, and start again."""
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
