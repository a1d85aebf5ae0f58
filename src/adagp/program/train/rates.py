"""How the model's learning rate changes during a run: by batches, by epochs, or not at all."""

from math import cos, pi
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from adagp.sources.learned import plain_state


class Rate:
    """A learning rate that stays as it is; the others change it in `before_batch` or `after_epoch`."""

    def before_batch(self, done: int) -> None:
        """Set the rate of the batch that comes after `done` batches."""

    def after_epoch(self, loss: float) -> None:
        """Set the rate of the next epoch, given the mean training loss of this one: test data decide nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""


class EpochRate(Rate):
    """The rate of one of torch's schedulers, which moves by epochs; with `by_loss`, of one that is told the loss."""

    def __init__(self, scheduler: LRScheduler, *, by_loss: bool = False) -> None:
        self.scheduler = scheduler
        self.by_loss = by_loss

    def after_epoch(self, loss: float) -> None:
        """Step the scheduler."""
        self.scheduler.step(*([loss] if self.by_loss else []))  # type: ignore[arg-type]  # the stubs have no loss

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        return plain_state(self.scheduler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.scheduler.load_state_dict(state)


class BatchRate(Rate):
    """The rate as a function of the batches done, out of `batches`: from `highest` along a curve to 0 at the end of the run.

    It has no state: a resumed run, and every process of a distributed one, finds the same rate at the same place.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, curve: str, highest: float, batches: int) -> None:
        self.optimizer = optimizer
        self.curve = CURVES[curve]
        self.highest = highest
        self.batches = batches

    def at(self, done: int) -> float:
        """Return the rate of the batch that comes after `done` batches."""
        return self.highest * self.curve(done / self.batches)

    def before_batch(self, done: int) -> None:
        """Give the optimizer the rate of that batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.at(done)


def cosine_curve(share: float) -> float:
    """Return half a cosine: level at both ends."""
    return (1 + cos(pi * share)) / 2


def linear_curve(share: float) -> float:
    """Return what is left of the run."""
    return 1 - share


CURVES = {"cosine": cosine_curve, "linear": linear_curve}
"""The share of the highest rate, given the share of the run that is done."""
