"""The guard: predictions that would damage the model are not applied."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adagp.errors import AdagpWarning, OptionError
from adagp.layers.sites import Site
from adagp.sources.support.norms import RunningNorms


@dataclass(frozen=True)
class Guard:
    """Refuses gradients that are not finite, or whose norm is over `limit` times the running norm of the true gradient.

    Before a site's first true gradient only finiteness is checked. A site whose gradient is refused is held in that batch.
    Where all are refused, the batch changes nothing and the rest of its phase is trained by backprop.
    """

    limit: float = 10.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise OptionError(
                f"the guard's limit is {self.limit}; it must be above 0 (infinity checks finiteness only)."
            )

    def allowed(self, sites: Sequence[Site], sizes: Tensor, norms: RunningNorms) -> list[bool]:
        """Tell of each gradient whether it may be applied, by its norm in `sizes`: one transfer from the device for all."""
        usual = norms.of(sites)
        bound = torch.where(usual > 0, self.limit * usual, torch.inf)
        answers: list[bool] = (sizes.isfinite() & (sizes <= bound)).tolist()
        return answers


class Refusals:
    """Counts what the guard refuses, by site, and warns once when it goes on and on."""

    PATIENCE = 10
    """Batches in a row with at least half of the gradients refused, after which it warns."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._names = [site.name for site in sites]
        self._given = [0] * len(sites)
        self._refused = [0] * len(sites)
        self._in_a_row = 0
        self._warned = False

    def note(self, sites: Sequence[Site], allowed: Sequence[bool]) -> None:
        """Take note of the guard's answers in one batch."""
        for site, may in zip(sites, allowed, strict=True):
            self._given[site.index] += 1
            self._refused[site.index] += not may
        self._in_a_row = self._in_a_row + 1 if 2 * sum(allowed) <= len(allowed) else 0
        if self._in_a_row == self.PATIENCE and not self._warned:
            self._warned = True
            first = next(site for site, may in zip(sites, allowed, strict=True) if not may)
            warnings.warn(
                f"the guard refused half or more of the produced gradients in {self.PATIENCE} batches in a row "
                f"({len(allowed) - sum(allowed)} of {len(allowed)} in this one, among them that of '{first.name}'): their "
                "weights are held there. A longer warm-up, method='feedback', or normalize=True for a predictor may help; "
                "guard=adagp.Guard(limit) sets how large a gradient may be.",
                AdagpWarning,
                stacklevel=2,
            )

    @property
    def total(self) -> tuple[int, int]:
        """The gradients refused, and those produced, since the last `read`."""
        return sum(self._refused), sum(self._given)

    def read(self) -> dict[str, float]:
        """Return the share of refused gradients of each site that had any since the last call, and start again."""
        shares = {
            name: refused / given
            for name, refused, given in zip(self._names, self._refused, self._given, strict=True)
            if given
        }
        self._given, self._refused = [0] * len(self._names), [0] * len(self._names)
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"given": list(self._given), "refused": list(self._refused), "in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._given, self._refused = list(state["given"]), list(state["refused"])
        self._in_a_row = state["in_a_row"]
