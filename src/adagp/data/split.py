"""Which samples a run does not see: a part of the training data that is held out, to choose settings by it without a look at
the test set; and what is left out of the test set, to save time.
"""

import torch
from torch import Tensor

from adagp.data.batches import generator_for
from adagp.errors import OptionError

_SPLIT, _EVALUATED = -2, -3
"""The places of these choices among the places of random numbers; they belong to no run's seed: all runs have the same."""


def held_out(samples: int, share: float) -> tuple[Tensor, Tensor]:
    """Return the numbers of the samples to train on and of those held out, both rising; the same for every seed."""
    count = held_out_count(samples, share)
    order = torch.randperm(samples, generator=generator_for(_SPLIT, samples))
    return order[count:].sort().values, order[:count].sort().values


def evaluated_on(samples: int, most: int | None) -> list[int]:
    """Return the numbers of the test samples to evaluate on, rising: `most` at most, drawn at random, the same each time."""
    if most is None or most >= samples:
        return list(range(samples))
    chosen = torch.randperm(samples, generator=generator_for(_EVALUATED, samples))[:most]
    return sorted(chosen.tolist())


def held_out_count(samples: int, share: float) -> int:
    """Return how many samples a share is; refuse one that leaves nothing on one of the two sides."""
    count = round(samples * share)
    if not 1 <= count < samples:
        raise OptionError(
            f"--validation is {share:g}, which holds out {count} of {samples} training samples; both parts need one at least."
        )
    return count
