"""Running norms of the true gradients: the yardstick for guards and for scaling predictions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adagp.layers.sites import Site


class RunningNorms:
    """The Euclidean norm of each site's true weight gradient, averaged over its recent BP batches.

    A plain mean until `1 / (1 - decay)` batches were seen, exponential forgetting after that. 0 before the first. The newest
    norms are known as well, so that nobody needs to read a gradient again for them.
    """

    def __init__(self, sites: Sequence[Site], decay: float = 0.95) -> None:
        device = sites[0].weight.device if sites else torch.device("cpu")
        self.decay = decay
        self.values = torch.zeros(len(sites), dtype=torch.float32, device=device)
        self.counts = torch.zeros(len(sites), dtype=torch.float32, device=device)
        self._newest = torch.zeros(len(sites), dtype=torch.float32, device=device)

    @torch.no_grad()
    def update(self, sites: Sequence[Site], norms: Tensor) -> None:
        """Take in the norms of one batch's true gradients, in the order of `sites`."""
        chosen = indices(sites, self.values.device)
        counts = self.counts[chosen] + 1
        share = (1 / counts).clamp(min=1 - self.decay)
        norms = norms.to(self.values)
        self.values[chosen] += share * (norms - self.values[chosen])
        self.counts[chosen] = counts
        self._newest[chosen] = norms

    def of(self, sites: Sequence[Site]) -> Tensor:
        """Return the running norms of `sites`, in their order."""
        return self.values[indices(sites, self.values.device)]

    def newest(self, sites: Sequence[Site]) -> Tensor:
        """Return the norms that were taken in last for `sites`, in their order."""
        return self._newest[indices(sites, self.values.device)]

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and how many batches stand behind them."""
        return {"values": self.values.clone(), "counts": self.counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.values.copy_(state["values"])
        self.counts.copy_(state["counts"])


def indices(sites: Sequence[Site], device: torch.device) -> Tensor:
    """Return the places of `sites` among the model's sites as an index tensor."""
    return torch.tensor([site.index for site in sites], device=device)
