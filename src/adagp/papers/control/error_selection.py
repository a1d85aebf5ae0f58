"""Which samples of a batch are trained by backprop if large errors are preferred, and how much each counts.

The norm of a sample's gradient is about that of its error at the model's output, times a factor that is much the same for all
samples. So sampling by the error's norm is near to sampling by the gradient's, which makes the noise of a mean least
(importance sampling). What keeps the mean right is the weight 1 / p of a sample that is drawn with probability p.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

UNIFORM_SHARE = 0.2
"""Part of the probability that all samples share alike, so that no weight exceeds that of plain sampling five times."""


def sample_norms(errors: Sequence[Tensor | None]) -> Tensor:
    """Return the norm of each sample's error over all outputs of a forward call; samples are the first axis."""
    squares = [error.float().flatten(1).square().sum(1) for error in errors if error is not None]
    return torch.stack(squares).sum(0).sqrt()


def draw_by_norm(norms: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` samples, those with large norms more often; return their indices, and the weight of each.

    The weights are those in a mean over the drawn samples: with them its expectation is the mean over all samples.
    """
    chances = inclusion_chances(norms.double().cpu(), count)
    order = torch.randperm(len(chances), generator=generator)
    # Systematic sampling: a comb of distance 1 with a random offset, over the chances laid end to end.
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    teeth = (chances[order].cumsum(0) - offset).ceil().clamp(0, count)
    teeth[-1] = count  # rounding of the sum must not lose the last tooth
    drawn = order[teeth.diff(prepend=teeth.new_zeros(1)) > 0].sort().values
    return drawn, (len(drawn) / len(chances) / chances[drawn]).float()


def inclusion_chances(norms: Tensor, count: int) -> Tensor:
    """Return the probability of each sample to be among `count` drawn ones: they add up to it, and none is above 1."""
    total = norms.sum()
    even = torch.full_like(norms, 1 / len(norms))
    scores = UNIFORM_SHARE * even + (1 - UNIFORM_SHARE) * (norms / total if total > 0 else even)
    certain = torch.zeros_like(norms, dtype=torch.bool)
    while True:
        left = count - int(certain.sum())
        chances = torch.where(certain, 1.0, left * scores / scores[~certain].sum())
        above = (chances > 1) & ~certain
        if not above.any():
            return chances
        certain |= above
