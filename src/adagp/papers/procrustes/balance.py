"""Load balancing by half tiles, as Procrustes does it.

PEs along one side of the array have different weights, so that the array waits for the one with most nonzeros. Each PE's
tile of weights is cut into two halves; all halves of an array-full are sorted by nonzeros, and the densest is put together
with the sparsest, the second with the second last, and so on. Time is that of the fullest pair: no other pairing has a lower
one (see the tests, which try all).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""Nonzeros of half tiles: a row for each array-full, two columns for each PE, its halves side by side."""


@dataclass(frozen=True)
class Tile:
    """What a PE holds at a time: `channels` (an even number, cut in two) times `filters` kernels of `kernel` weights."""

    channels: int
    filters: int
    kernel: int

    @property
    def half(self) -> int:
        """Weights of a half, if none is zero."""
        return self.channels // 2 * self.filters * self.kernel


def fullest(counts: Counts) -> Counts:
    """Return for each array-full the nonzeros of the fullest PE after balancing."""
    ordered = np.sort(counts, axis=1)
    found: Counts = np.max(ordered + ordered[:, ::-1], axis=1, initial=0)
    return found


def unbalanced(counts: Counts) -> Counts:
    """Return for each array-full the nonzeros of the fullest PE, if each keeps its own two halves."""
    found: Counts = np.max(counts[:, ::2] + counts[:, 1::2], axis=1, initial=0)
    return found


def inverse_speedup(counts: Counts, dense: Counts, *, balanced: bool = True) -> float:
    """Return the time of sparse tiles over that of the same tiles with all weights, a mean over the array-fulls.

    `dense` are the weights of the same halves, zeros counted; so a density of 1 gives 1 whatever the layer's edges are.
    """
    find = fullest if balanced else unbalanced
    return float(np.mean(find(counts) / np.maximum(1, find(dense))))


def tile_counts(mask: NDArray[np.bool_], tile: Tile, side: int) -> tuple[Counts, Counts]:
    """Return nonzeros and weights of the half tiles of a mask `(channels, filters, kernel)` on `side` PEs."""
    channels, filters, _ = mask.shape
    half = tile.channels // 2
    wide, deep = -(-channels // (half * 2 * side)), -(-filters // tile.filters)

    def halves(weights: NDArray[np.bool_]) -> Counts:
        padded = np.zeros((wide * side * 2 * half, deep * tile.filters, mask.shape[2]), dtype=np.int64)
        padded[:channels, :filters] = weights
        shape = (wide, 2 * side, half, deep, tile.filters, mask.shape[2])
        found: Counts = padded.reshape(shape).sum(axis=(2, 4, 5)).transpose(0, 2, 1).reshape(wide * deep, 2 * side)
        return found

    return halves(mask), halves(np.ones_like(mask))


def drawn_counts(
    channels: int, filters: int, tile: Tile, side: int, density: float, random: np.random.Generator
) -> tuple[Counts, Counts]:
    """Return what `tile_counts` gives for a mask whose weights are nonzero with probability `density`, each by itself."""
    half = tile.channels // 2
    wide, deep = -(-channels // (half * 2 * side)), -(-filters // tile.filters)
    held = np.clip(channels - half * np.arange(wide * 2 * side), 0, half).reshape(wide, 1, 2 * side)
    rows = np.clip(filters - tile.filters * np.arange(deep), 0, tile.filters).reshape(1, deep, 1)
    dense = (held * rows * tile.kernel).reshape(wide * deep, 2 * side).astype(np.int64)
    return random.binomial(dense, density).astype(np.int64), dense
