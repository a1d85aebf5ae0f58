"""The threshold above which a given share of many numbers lies: exactly, or estimated in one pass with one number of state."""

from collections.abc import Sequence
from math import exp, log1p

import torch
from torch import Tensor

LARGEST_RATE = 1e-3
CHUNK = 4096
SMALLEST_CHUNK = 64
LEAST = 1e-30
"""The estimate never falls below it: from zero it could not rise again."""


def keep_largest(sizes: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return masks of the `count` largest of all sizes: those above the `count`-th largest, and of those equal to it the
    first ones in order. What is zero is never kept."""
    flat = torch.cat([size.reshape(-1) for size in sizes])
    count = min(count, flat.numel())
    if count == 0:
        return [torch.zeros_like(size, dtype=torch.bool) for size in sizes]
    threshold = flat.kthvalue(flat.numel() - count + 1).values
    mask = flat > threshold
    equal = (flat == threshold).nonzero().reshape(-1)
    mask[equal[: count - int(mask.sum())]] = True
    mask &= flat > 0
    parts = mask.split([size.numel() for size in sizes])
    return [part.view(size.shape) for part, size in zip(parts, sizes, strict=True)]


class QuantileEstimate:
    """A running estimate of the quantile `below` (0 to 1) of positive numbers, by the multiplicative rule of Yazidi and Hammer.

    Each number above the estimate raises it by a factor `1 + rate * below`, each other one lowers it by
    `1 - rate * (1 - below)`; in balance a share `below` lies below. Numbers are compared in chunks with the estimate at the
    chunk's begin, and the chunk's factors are applied at once: two vector operations instead of a loop. The estimate is
    carried on from pass to pass. Where the published code leaves a choice, this is ours: `rate` is 10 / the kept number, at
    most 1e-3, so that one pass can correct a start that is too high by exp(10).
    """

    def __init__(self, below: float, count: int, *, start: float = 1e-2, rate: float | None = None) -> None:
        self.below = below
        self.rate = min(LARGEST_RATE, 10 / max(1, count)) if rate is None else rate
        self.value = start
        self.chunk = int(min(CHUNK, max(SMALLEST_CHUNK, 0.5 / self.rate)))
        self._raise = log1p(self.rate * below)
        self._lower = log1p(-self.rate * (1 - below))

    def masks(self, sizes: Sequence[Tensor]) -> list[Tensor]:
        """Return masks of the numbers above the estimate as it was when they came, from the last tensor to the first."""
        masks = [self._pass(part) for part in reversed(sizes)]
        return masks[::-1]

    def _pass(self, sizes: Tensor) -> Tensor:
        flat = sizes.reshape(-1)
        passed = torch.empty_like(flat, dtype=torch.bool)
        for numbers, mask in zip(reversed(flat.split(self.chunk)), reversed(passed.split(self.chunk)), strict=True):
            torch.gt(numbers, self.value, out=mask)
            above = int(mask.sum())
            factor = exp(self._raise * above + self._lower * (len(numbers) - above))
            self.value = max(LEAST, self.value * factor)
        return passed.view(sizes.shape)
