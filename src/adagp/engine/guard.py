"""The guard: predictions that would damage the model are not applied."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adagp.errors import OptionError
from adagp.sites import Site
from adagp.sources.support.norms import RunningNorms


@dataclass(frozen=True)
class Guard:
    """Refuses gradients that are not finite, or whose norm is over `limit` times the running norm of the true gradient.

    Before a site's first true gradient only finiteness is checked. A refused batch changes nothing; the rest of its phase
    is trained by backprop.
    """

    limit: float = 10.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise OptionError(
                f"the guard's limit is {self.limit}; it must be above 0 (infinity checks finiteness only)."
            )

    def allows(self, sites: Sequence[Site], sizes: Tensor, norms: RunningNorms) -> bool:
        """Tell whether gradients with the norms `sizes` may be applied: one answer for all, one transfer from the device."""
        usual = norms.of(sites)
        bound = torch.where(usual > 0, self.limit * usual, torch.inf)
        return bool((sizes.isfinite() & (sizes <= bound)).all())
