"""Hooks that change the weights after each step of the optimizer, as DropBack does.

They see predicted updates like any other. In a training loop of your own, give them to
`adagp.EngineOptions(weight_hooks=...)`. For the command line a package declares them in `adagp.core.methods`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from adagp.core.plan import Step
from adagp.layers.sites import Survey


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
