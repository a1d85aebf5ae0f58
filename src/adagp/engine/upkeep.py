"""The contract of upkeep: something that is done to the weights after each step of the optimizer.

Where a batch's gradients came from does not matter to it: a predicted update is treated like any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from adagp.core.plan import Step
from adagp.layers.sites import Survey


class Upkeep(ABC):
    """Something that is done to the weights after each step of the optimizer.

    It must be a function of the weights and its own state alone, so that the copies of a data parallel run stay equal.
    """

    @abstractmethod
    def bind(self, survey: Survey) -> None:
        """Take the parameters of the model at their initial values. Called once, by `adagp.attach`."""

    @abstractmethod
    def after_step(self, step: Step) -> None:
        """Change the weights that the optimizer has just moved; `step` is the batch's place in the run.

        Batches in which the optimizer is not stepped (skipped, or refused by the guard) are left out.
        """

    def figures(self) -> dict[str, float]:
        """Return figures of the whole model for the metrics of an epoch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what must be known to continue: tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but one was saved: {', '.join(state)}")

    def compress(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return a model's state_dict in a form that takes less room, from which `expand` makes the same bits again."""
        return weights

    def expand(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the state_dict that `compress` was given."""
        return weights


def as_upkeep(given: "Upkeep | Sequence[Upkeep]") -> tuple[Upkeep, ...]:
    """Return one upkeep or several as a tuple, in the order in which they are done."""
    return (given,) if isinstance(given, Upkeep) else tuple(given)


def density(weight: Tensor) -> float:
    """Return the share of the entries that are not zero."""
    return float(weight.detach().count_nonzero()) / max(1, weight.numel())
