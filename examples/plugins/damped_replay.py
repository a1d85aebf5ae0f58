"""A source of gradients with an option of its own: the last true gradient, damped.

adagp train --plugin examples.plugins.damped_replay --method damped_replay --damping 0.7
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import adagp
from adagp.layers.sites import Site


@adagp.register_method("damped_replay")
class DampedReplay(adagp.Source):
    """The last true gradient times a damping factor."""

    learns = True
    own_options = (
        adagp.Option("damping", float, 0.5, "Factor on the last true gradient.", low=0, high=1, allowed="0 to 1"),
    )
    own_schedule = "2:1"
    accelerator = adagp.AcceleratorWork()  # no product at all; the gradient is read from memory

    def __init__(self, damping: float = 0.5) -> None:
        self.damping = damping
        self._last: dict[int, Tensor] = {}

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Keep the truth, as a copy."""
        for site, gradient in zip(sites, gradients, strict=True):
            self._last[site.index] = gradient.detach().clone()

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return what was kept, damped; nothing before the first true gradient."""
        known = (self._last.get(site.index) for site in sites)
        return [None if one is None else one * self.damping for one in known]

    def state_dict(self) -> dict[str, Any]:
        """Return the gradients that are kept: a run can then be resumed exactly."""
        return {"last": dict(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._last = dict(state["last"])
