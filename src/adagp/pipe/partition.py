"""Cutting a row of layers into stages: contiguous, none empty, the largest as small as it can be."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from adagp.errors import OptionError


def partition(weights: Sequence[float], parts: int) -> list[range]:
    """Return the ranges of layers that make up each of `parts` stages, with the least possible largest sum of `weights`.

    That sum is one of the sums of contiguous layers. A bound suffices if filling each part as far as it
    allows takes no more than `parts`; bisection finds the least bound that does, so the cut is optimal.
    """
    if not 1 <= parts <= len(weights):
        raise OptionError(f"{len(weights)} layers cannot be cut into {parts} stages; give 1 to {len(weights)}.")
    sums = [0.0, *accumulate(weights)]
    bounds = sorted({sums[high] - sums[low] for low in range(len(sums)) for high in range(low + 1, len(sums))})
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if len(_fill(sums, bounds[middle])) <= parts:
            high = middle
        else:
            low = middle + 1
    return _split_further(_fill(sums, bounds[low]), parts)


def _fill(sums: Sequence[float], bound: float) -> list[range]:
    """Return parts of at most `bound` each, as long as can be; more than there are layers if a layer is above it."""
    filled: list[range] = []
    start = 0
    while start < len(sums) - 1:
        stop = bisect_right(range(len(sums)), bound, lo=start, key=lambda end: sums[end] - sums[start]) - 1
        if stop == start:
            return [range(0)] * len(sums)
        filled.append(range(start, stop))
        start = stop
    return filled


def _split_further(filled: list[range], parts: int) -> list[range]:
    """Return exactly `parts` parts, by cutting off single layers: no sum grows."""
    while len(filled) < parts:
        index = next(index for index, part in enumerate(filled) if len(part) > 1)
        part = filled[index]
        filled[index : index + 1] = [part[:1], part[1:]]
    return filled
