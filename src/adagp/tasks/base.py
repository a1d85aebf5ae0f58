"""The contract of a task: all that the training loop knows of data, loss and score."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


class Task(ABC):
    """Batches to train on, their loss, and the evaluation on held-out data.

    Batches are a pure function of the epoch and the batch's place in it, so that a run can be resumed anywhere.
    """

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """Batches in each epoch."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield `(inputs, targets)` from batch `start` of `epoch` on. A tuple of inputs is passed as several arguments."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the untrained model, initialised from torch's global random state."""

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def score(self, output: Any, targets: Any) -> tuple[Tensor, int]:
        """Return how many of a batch's answers are right, and how many answers there are."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the figures on held-out data, `loss` and `accuracy` (0 to 1) among them. The model's mode is kept."""

    def final_metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return figures that are too dear for every epoch, by their names in the summary. The model's mode is kept."""
        return {}
