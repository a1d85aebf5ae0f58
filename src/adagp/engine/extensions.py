"""What can change a batch besides the plan: the arithmetic of its products, and hooks after the optimizer's step.

A plan decides where a site's weight gradient comes from; an arithmetic decides in which number format the site's products
(forward, input gradient, weight gradient) are computed. The two are independent. `adagp.core.precision` makes an arithmetic
from its text form.

Weight-update hooks change the weights after each step of the optimizer, as DropBack does, whether its gradients were true or
predicted. In your own training loop, pass them to `adagp.EngineOptions(weight_hooks=...)`. For the command line, a package
declares them with `adagp.core.methods`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from adagp.core.plan import Step
from adagp.layers.sites import Site, Survey


@dataclass(frozen=True)
class ArithmeticFacts:
    """What an arithmetic may depend on besides the batch: the sites in order of execution, the batches of the run, a seed."""

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
        """Return the metrics since the last call, by site, and reset them."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics recorded since the last `read_metrics`, for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # most have none
        """Restore what `state_dict` returned."""


class WeightUpdateHook(ABC):
    """Changes the weights after each step of the optimizer.

    It must be a function of the weights and its own state alone, so that the copies of a data parallel run stay equal.
    """

    @abstractmethod
    def bind(self, survey: Survey) -> None:
        """Take the parameters of the model at their initial values. Called once, by `adagp.attach`."""

    @abstractmethod
    def after_step(self, step: Step) -> None:
        """Change the weights that the optimizer has just updated; `step` is the batch's place in the run.

        Not called in batches without an optimizer step (skipped, or rejected by the guard).
        """

    def figures(self) -> dict[str, float]:
        """Return metrics of the whole model, once an epoch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume: tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but one was saved: {', '.join(state)}")

    def compress(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return a smaller form of a model's state_dict for checkpoints, from which `expand` makes the same bits again."""
        return weights

    def expand(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the state_dict that was given to `compress`."""
        return weights
