"""Maps averaged over blocks of positions, so that what feedback keeps of large maps stays in proportion to the weights.

What is kept of a layer grows with its maps: for each feature two patterns as large as a sample's output, and a mixed input. The
expected gradient of a map varies slowly from position to position, so a coarser grid loses little of it.

From the same sizes `feedback_demand` counts the memory and the work of the method.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import torch.nn.functional as F
from torch import Size, Tensor

from adagp.layers.sites import Site
from adagp.sources.demand import NUMBER_BYTES, Demand, TrialCall

SMALL_MEMORY = 2**26
"""Bytes up to which maps are kept as they are, however small the weights."""

Blocks = tuple[int, ...]
"""How many neighbouring positions are averaged along each axis of a map; empty: none."""

_AVERAGES = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True)
class KeptMaps:
    """A site, the sizes of its output and, if they are kept, of its inputs: `(N, C, ...)`, or `(..., numbers)` if linear."""

    site: Site
    output: Size
    inputs: Size | None

    def numbers(self, features: int, side: int) -> int:
        """Return how many numbers are kept between batches: patterns, mixed inputs and the mean true gradient."""
        kept = 2 * (features + 1) * self.output_numbers(side)
        if self.inputs is None:
            return kept
        return kept + (features + 1) * self.input_numbers(side) + self.site.weight.numel()

    def output_numbers(self, side: int) -> int:
        """Return the numbers of a row of its output, averaged to at most `side` positions per axis."""
        return self._per_row(self.output, side)

    def input_numbers(self, side: int) -> int:
        """Return the numbers of a row of its input, averaged likewise; 0 if it is not kept."""
        return 0 if self.inputs is None else self._per_row(self.inputs, side)

    @property
    def longest(self) -> int:
        """The longest axis of its maps; 0 of a linear layer."""
        return 0 if self.site.rule.kind == "linear" else max([*self.output[2:], *(self.inputs or ())[2:]])

    def _per_row(self, shape: Size, side: int) -> int:
        if self.site.rule.kind == "linear":
            return shape[-1]
        return pooled_shape(shape, blocks_for(self.site, shape, side))[1:].numel()


def kept_bytes(maps: Iterable[KeptMaps], features: int, side: int = 0) -> int:
    """Return the bytes kept for the sites between batches, with maps averaged to at most `side` positions per axis."""
    return NUMBER_BYTES * sum(kept.numbers(features, side) for kept in maps)


def largest_side(maps: Iterable[KeptMaps], features: int, limit: float) -> int:
    """Return the most positions per axis for which the sites keep at most `limit` times the bytes of their weights.

    0: maps need not be averaged. 1 is also returned if even one position per axis is too much.
    """
    maps = list(maps)
    weights = sum(kept.site.weight.numel() for kept in maps)
    allowed = max(SMALL_MEMORY, limit * NUMBER_BYTES * weights)
    if kept_bytes(maps, features) <= allowed:
        return 0
    sides = sorted({ceil(kept.longest / block) for kept in maps for block in range(2, kept.longest)}, reverse=True)
    return next((side for side in sides if kept_bytes(maps, features, side) <= allowed), 1)


def blocks_for(site: Site, shape: Size, side: int) -> Blocks:
    """Return the blocks that leave at most `side` positions per axis (0: all) of maps of `shape`; empty: nothing to average."""
    if not side or site.rule.kind == "linear" or max(shape[2:]) <= side:
        return ()
    return tuple(ceil(size / side) for size in shape[2:])


def pooled_shape(shape: Size, blocks: Blocks) -> Size:
    """Return the sizes of maps of `shape` after they are averaged over blocks."""
    if not blocks:
        return shape
    return Size((*shape[:2], *(ceil(size / block) for size, block in zip(shape[2:], blocks, strict=True))))


def pooled(maps: Tensor, blocks: Blocks) -> Tensor:
    """Return maps `(N, C, ...)` averaged over blocks; the last block of an axis may be smaller."""
    return _AVERAGES[len(blocks)](maps.float(), blocks, ceil_mode=True) if blocks else maps


def repeated(maps: Tensor, blocks: Blocks, shape: Size) -> Tensor:
    """Expand maps that were averaged over blocks to `shape`: each number is repeated at all positions of its block."""
    if not blocks:
        return maps
    maps = F.interpolate(maps, scale_factor=tuple(float(block) for block in blocks))
    for axis, size in enumerate(shape[2:], 2):
        maps = maps.narrow(axis, 0, size)
    return maps


def _of_all_rows(calls: Sequence[TrialCall], numbers: Sequence[int]) -> int:
    """Return how many numbers all rows of the calls have, given those of one row in each call."""
    return sum(call.rows * number for call, number in zip(calls, numbers, strict=True))


def feedback_demand(
    calls: Sequence[TrialCall], features: int, limit: float, learned: float, corrected: float
) -> Demand:
    """Return the memory and the work of feedback with K `features`.

    `learned` and `corrected` are the fractions of BP batches that update the fit and the bias correction. A BP batch computes
    K + 1 weighted sums of the rows of output gradients and of inputs. A GP batch keeps the inputs until the error is known,
    mixes them to K + 1 rows, and takes the weight gradient of K + 2 rows in place of all.
    """
    maps = [KeptMaps(call.site, call.output, call.inputs if corrected else None) for call in calls]
    unique = list({kept.site: kept for kept in maps}.values())
    side = largest_side(unique, features, limit)
    outputs = [kept.output_numbers(side) for kept in maps]
    inputs = [kept.input_numbers(side) for kept in maps]
    learning, correcting = _of_all_rows(calls, outputs), _of_all_rows(calls, inputs)
    whole = sum(call.inputs.numel() // call.rows for call in calls)
    mixing = sum(call.inputs.numel() for call in calls)
    gradients = sum(call.macs // call.rows for call in calls)
    return Demand(
        state=kept_bytes(unique, features, side),
        bp_bytes=NUMBER_BYTES * (features + 1) * (sum(outputs) + sum(inputs)),
        gp_bytes=NUMBER_BYTES * (mixing + (features + 2) * whole),
        bp_macs=round((features + 1) * (learned * learning + corrected * correcting)),
        gp_macs=(features + 1) * mixing + (features + 2) * gradients,
    )
