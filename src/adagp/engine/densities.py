"""How many weights and inputs of each site are not zero: what an accelerator for sparse training can leave out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adagp.layers.sites import Site


class DensityMeter:
    """The share of non-zero inputs of each site, sampled in every `interval`-th batch that runs (0: never); and of weights."""

    def __init__(self, sites: Sequence[Site], interval: int) -> None:
        self.interval = interval
        self._sites = sites
        self._batches = 0
        device = sites[0].weight.device if sites else torch.device("cpu")
        self._sums = torch.zeros(len(sites), 2, dtype=torch.float64, device=device)

    def due(self) -> bool:
        """Tell whether the coming batch is one to be sampled."""
        return self.interval > 0 and self._batches % self.interval == 0

    @torch.no_grad()
    def watch(self, site: Site, inputs: Sequence[Any]) -> None:
        """Count the inputs of a forward call that are not zero."""
        for one in inputs[:1]:
            if isinstance(one, Tensor):
                self._sums[site.index, 0] += one.count_nonzero()
                self._sums[site.index, 1] += one.numel()

    def end_batch(self) -> None:
        """Go on to the next batch."""
        self._batches += 1

    def read(self) -> dict[str, dict[str, float | None]]:
        """Return both densities of each site since the last call, None where nothing was sampled, and start again."""
        sums = self._sums.tolist()
        self._sums.zero_()
        return {
            site.name: {
                "weight_density": density(site.weight),
                "input_density": found / total if total else None,
            }
            for site, (found, total) in zip(self._sites, sums, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of the epoch so far."""
        return {"batches": self._batches, "sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._batches = state["batches"]
        self._sums.copy_(state["sums"])


def density(weight: Tensor) -> float:
    """Return the share of the entries that are not zero."""
    return float(weight.detach().count_nonzero()) / max(1, weight.numel())
