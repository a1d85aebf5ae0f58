"""Learning rates that fall from batch to batch, down to nothing at the end of the run."""

from math import cos, pi

import torch


class BatchRate:
    """The learning rate as a function of the batches done, out of `batches`: from `highest` along a curve to 0.

    It has no state: a resumed run, and every process of a distributed one, finds the same rate at the same place.
    """

    def __init__(self, curve: str, highest: float, batches: int) -> None:
        self.curve = CURVES[curve]
        self.highest = highest
        self.batches = batches

    def at(self, done: int) -> float:
        """Return the rate of the batch that comes after `done` batches."""
        return self.highest * self.curve(done / self.batches)

    def apply(self, optimizer: torch.optim.Optimizer, done: int) -> None:
        """Give `optimizer` the rate of that batch."""
        for group in optimizer.param_groups:
            group["lr"] = self.at(done)


def cosine_curve(share: float) -> float:
    """Return half a cosine: level at both ends."""
    return (1 + cos(pi * share)) / 2


def linear_curve(share: float) -> float:
    """Return what is left of the run."""
    return 1 - share


CURVES = {"cosine": cosine_curve, "linear": linear_curve}
"""The share of the highest rate, given the share of the run that is done."""
