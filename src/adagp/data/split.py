"""Holding a part of the training data out, to choose settings by it without a look at the test set."""

import torch
from torch import Tensor

from adagp.data.batches import generator_for
from adagp.errors import OptionError

_SPLIT = -2
"""The place of the split among the places of random numbers; it belongs to no run's seed, so all runs hold out the same."""


def held_out(samples: int, share: float) -> tuple[Tensor, Tensor]:
    """Return the numbers of the samples to train on and of those held out, both rising; the same for every seed."""
    count = held_out_count(samples, share)
    order = torch.randperm(samples, generator=generator_for(_SPLIT, samples))
    return order[count:].sort().values, order[:count].sort().values


def held_out_count(samples: int, share: float) -> int:
    """Return how many samples a share is; refuse one that leaves nothing on one of the two sides."""
    count = round(samples * share)
    if not 1 <= count < samples:
        raise OptionError(
            f"--validation is {share:g}, which holds out {count} of {samples} training samples; both parts need one at least."
        )
    return count
