"""The contract of an arithmetic: how the products of a model's sites are computed in each batch.

A plan decides where a site's weight gradient comes from; an arithmetic, in which numbers the site's products (forward, input
gradient, weight gradient) are computed. The two are independent. `adagp.core.precision` makes one from its text form.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from adagp.layers.sites import Site


@dataclass(frozen=True)
class ArithmeticFacts:
    """What an arithmetic may depend on besides the batch: the sites in order of execution, the run's batches, a seed."""

    order: Sequence[Site]
    batches: int
    seed: int = 0


class Arithmetic(ABC):
    """Computes the products of a run's sites inside its contexts; outside them torch's own products are used."""

    @abstractmethod
    def batch(self, number: int) -> AbstractContextManager[None]:
        """Compute the sites' products inside the context as in batch `number` of the run, counted from 0."""

    @abstractmethod
    def evaluation(self, number: int) -> AbstractContextManager[None]:
        """Compute all products of the sites inside the context as in batch `number`, without recording metrics."""

    @abstractmethod
    def paused(self) -> AbstractContextManager[None]:
        """Use torch's own products inside the context, also within `batch`."""

    def check_called(self, called: Mapping[Site, int]) -> None:  # noqa: B027  # not every arithmetic can miss a product
        """Raise if a site was called whose product was not computed in this arithmetic."""

    def read_metrics(self) -> dict[str, dict[str, float]]:
        """Return metrics by site since the last call, and start again."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics recorded since the last `read_metrics`, for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # most have none
        """Restore what `state_dict` returned."""
