"""Procrustes' array for sparse training (Yang et al., MICRO 2020): cycles, accesses and energy of the three passes.

16 x 16 PEs with an fp32 multiply-accumulate and 256 words each; the batch lies along one side, channels (or filters) along
the other. Forward and input gradient leave out zero weights, the weight gradient zero inputs. Sizes and dataflow are those of
the authors' published simulator; energies are the ratios that it takes where no energy tool is at hand (units of a 16-bit
multiply-accumulate, from Eyeriss); the unit is Horowitz's 1.5 pJ. Ours: the clock, a tile of at most half of a PE's memory,
random masks of each layer's density. Not in it: the quantile estimator, the balancer and the generator of initial weights,
whose energy is not published.

PEs along one side of the array have different weights, so that the array waits for the one with most nonzeros. Each PE's
tile of weights is cut into two halves; all halves of an array-full are sorted by nonzeros, and the densest is put together
with the sparsest, the second with the second last, and so on. Time is that of the fullest pair: no other pairing has a lower
one (see the tests, which try all).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from adagp.hw.systems import SYSTEMS, LayerRecord, PassCost, System, SystemCost, SystemOptions
from adagp.hw.workload import ArrayLayer, Attention, Convolution, Workload

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
    fullest_half: Counts = np.max(ordered + ordered[:, ::-1], axis=1, initial=0)
    return fullest_half


def inverse_speedup(counts: Counts, dense: Counts) -> float:
    """Return the time of sparse tiles over that of the same tiles with all weights, a mean over the array-fulls.

    `dense` are the weights of the same halves, zeros counted; so a density of 1 gives 1 whatever the layer's edges are.
    """
    return float(np.mean(fullest(counts) / np.maximum(1, fullest(dense))))


def drawn_counts(
    channels: int, filters: int, tile: Tile, side: int, density: float, random: np.random.Generator
) -> tuple[Counts, Counts]:
    """Return nonzeros and weights of the half tiles on `side` PEs, if weights are nonzero with probability `density` each."""
    half = tile.channels // 2
    wide, deep = -(-channels // (half * 2 * side)), -(-filters // tile.filters)
    per_half = np.clip(channels - half * np.arange(wide * 2 * side), 0, half).reshape(wide, 1, 2 * side)
    rows = np.clip(filters - tile.filters * np.arange(deep), 0, tile.filters).reshape(1, deep, 1)
    dense = (per_half * rows * tile.kernel).reshape(wide * deep, 2 * side).astype(np.int64)
    return random.binomial(dense, density).astype(np.int64), dense


def counts_of_mask(mask: NDArray[np.bool_], tile: Tile, side: int) -> tuple[Counts, Counts]:
    """Return nonzeros and weights of the half tiles of a layer's own mask, of shape (filters, channels, kernel)."""
    filters, channels, kernel = mask.shape
    half = tile.channels // 2
    wide, deep = -(-channels // (half * 2 * side)), -(-filters // tile.filters)
    padded = np.zeros((deep * tile.filters, wide * 2 * side * half, kernel), dtype=np.int64)
    inside = np.zeros_like(padded)
    padded[:filters, :channels], inside[:filters, :channels] = mask, 1

    def halves(values: NDArray[np.int64]) -> Counts:
        cut = values.reshape(deep, tile.filters, wide, 2 * side, half, kernel).sum((1, 4, 5))
        counts: Counts = cut.transpose(1, 0, 2).reshape(wide * deep, 2 * side)
        return counts

    return halves(padded), halves(inside)


def unbalanced_share(counts: Counts, dense: Counts) -> float:
    """Return the time of sparse tiles over that of dense ones without balancing: each PE keeps its own halves."""
    own, whole = (np.max(halves[:, ::2] + halves[:, 1::2], axis=1, initial=0) for halves in (counts, dense))
    return float(np.mean(own / np.maximum(1, whole)))


SIDE = 16
WORD_BITS, POINTER_BITS = 32, 20
PE_WORDS = 256
CLOCK_HZ = 200e6
UNIT = 1.5e-12
"""Joules of a 16-bit multiply-accumulate (Horowitz 2014: 1.1 pJ multiplication and 0.4 pJ addition at 45 nm)."""
MAC, PE_MEMORY, BUFFER, DRAM = 4.0, 2.05, 14.8, 400.0
"""Energies of 32 bits in that unit."""
PE_ACCESSES = 4
"""Memory accesses of a multiply-accumulate: weight, input, and a sum that is read and written."""
TILE_CHANNELS = (2, 4, 8)
MOST_KERNEL = 16
"""Inputs of a channel that a PE holds at a time in the weight gradient, where whole maps stand in a kernel's place."""
DENSE = LayerRecord()


def index_bits(weights: int, block: int) -> int:
    """Return the bits of compressed sparse blocks without their values: a mask bit per weight, a pointer per block."""
    return -(-weights // block) * (block + POINTER_BITS)


class LayerShape:
    """A layer in the simulator's letters: C and K channels, N samples, R x S kernel, P x Q outputs."""

    def __init__(self, layer: ArrayLayer, batch: int) -> None:
        if isinstance(layer, Convolution):
            self.c, self.k, self.groups = layer.in_channels, layer.out_channels, layer.groups
            self.n, self.kernel, self.outputs = batch, prod(layer.kernel), prod(layer.output_size)
        else:
            product = layer.product(batch)
            self.c, self.k, self.groups = product.depth, product.columns, 1
            self.n, self.kernel, self.outputs = product.rows * product.count, 1, 1
        self.weights = self.c * self.k // self.groups * self.kernel
        self.inputs, self.sums = batch * layer.input_words, batch * layer.output_words

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a pass."""
        return self.weights * self.outputs * self.n

    def dense_cycles(self, along: int, across: int) -> int:
        """Return the cycles of a pass with `along` and `across` on the two sides of the array."""
        return -(-along // SIDE) * -(-across // SIDE) * -(-self.macs // (along * across))


def pass_cost(shape: LayerShape, name: str, density: float, random: np.random.Generator) -> tuple[PassCost, float]:
    """Return the cost of a pass whose sparse operand has this density, and its time over that of the dense pass."""
    if name == "weight_gradient":  # the inputs take the weights' place: samples along one side, filters along the other
        along, across, rows, kernel = shape.n, shape.k, shape.c // shape.groups, shape.outputs
        rows, kernel = rows * -(-kernel // MOST_KERNEL), min(kernel, MOST_KERNEL)
        sparse, others = shape.inputs, (shape.sums, shape.weights)
    else:
        along, rows = (shape.c, shape.k) if name == "forward" else (shape.k, shape.c)
        across, kernel, rows = shape.n, shape.kernel, max(1, rows // shape.groups)
        sparse, others = shape.weights, (shape.inputs, shape.sums)
    share = (
        1.0
        if density >= 1
        else min(_share(along, rows, kernel, channels, density, random) for channels in TILE_CHANNELS)
    )
    cycles = -(-shape.dense_cycles(along, across) * share // 1)
    index = 0.0 if density >= 1 else index_bits(sparse, kernel) / WORD_BITS
    moved = sparse * density + index
    macs = shape.macs * density
    buffered = moved * -(-across // SIDE) + sum(others) * max(1, -(-rows // _filters(kernel, 2, density)))
    units = macs * (MAC + PE_ACCESSES * PE_MEMORY) + buffered * BUFFER + (moved + sum(others)) * DRAM
    return PassCost(float(cycles), units * UNIT), share


def _filters(kernel: int, channels: int, density: float) -> int:
    """Return how many filters' kernels fill half of a PE's memory."""
    return max(1, int(PE_WORDS / 2 / (channels * kernel * density)))


def _share(along: int, rows: int, kernel: int, channels: int, density: float, random: np.random.Generator) -> float:
    tile = Tile(channels, min(rows, _filters(kernel, channels, density)), kernel)
    return inverse_speedup(*drawn_counts(along, rows, tile, SIDE, density, random))


def training_cost(
    workload: Workload, batch: int, records: Mapping[str, LayerRecord], options: SystemOptions | None = None
) -> SystemCost:
    """Return the cost of a batch, with speed-up and energy against the same array with all weights and inputs."""
    random = np.random.default_rng(0)
    passes = {name: PassCost() for name in ("forward", "input_gradient", "weight_gradient")}
    dense, ideal = PassCost(), 0.0
    for layer in workload.array_layers:
        shape = LayerShape(layer, batch)
        record = DENSE if isinstance(layer, Attention) else records.get(layer.name, DENSE)
        for name in _needed(layer):
            density = record.input_density if name == "weight_gradient" else record.weight_density
            passes[name] += pass_cost(shape, name, density, random)[0]
            dense += pass_cost(shape, name, 1.0, random)[0]
            ideal += shape.macs * density / SIDE**2
    total = sum(passes.values(), PassCost())
    return SystemCost(
        passes,
        {
            "speed-up over dense on the same array": dense.cycles / total.cycles,
            "energy of dense over ours": dense.joules / total.joules,
            "cycles over ideal ones": total.cycles / ideal,
        },
    )


def _needed(layer: ArrayLayer) -> list[str]:
    needed = ["forward"]
    needed += ["input_gradient"] if layer.input_gradient else []
    needed += ["weight_gradient"] if layer.trainable or isinstance(layer, Attention) else []
    return needed


SYSTEMS.add(
    "procrustes", System("procrustes", "sparse training: zero weights and inputs are left out", CLOCK_HZ, training_cost)
)
