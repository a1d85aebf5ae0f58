"""Which part of a product is on chip at a time: the tiling that moves the least over the off-chip pins.

A product runs as a nest of three loops over tiles of its rows, depth and columns, in one of six orders. Half of the global
buffer holds a tile of each matrix while the other half is filled for the next. A matrix is moved again for each turn of the
loop whose index it does not have, unless only turns of that loop lie between two uses of a tile. A result whose sum is not
whole when it leaves is written and read again at the width of sums.

Rows of a convolution are cut into groups of images and, below one image, into groups of output lines, whose windows overlap:
the lines between are moved twice. Its depth is cut between channels. Tiles are as large as a size divided by its divisors and
by powers of two. All of them, in all orders, are tried at once.

Of the tilings that take at most `SLACK` longer than the quickest one (a cut through time costs the array cycles, and moving
takes time too), the one with the least off-chip traffic is taken.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import OptionError
from adagp.hw.array import Array
from adagp.hw.dataflows import placement_of
from adagp.hw.memory import Memory, Tiling
from adagp.hw.product import RESULTS, Product

SLACK = 0.02
INDICES = ("rows", "depth", "columns")
ORDERS = tuple(permutations(range(3)))
"""Loops over rows, depth and columns, outermost first."""
MISSING = {"inputs": 2, "weights": 0, "outputs": 1}
"""The loop whose index a matrix does not have."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Cuts:
    """All ways to cut one index: the tiles' sizes, how many there are, and a matrix's words for a unit of the other index.

    `words` are those of one tile of the inputs, `moved` those of all tiles, where overlaps count twice.
    """

    size: Numbers
    parts: Numbers
    words: Numbers
    moved: Numbers

    def along(self, axis: int) -> "Cuts":
        """Return the same with its values along one of three axes."""
        shape = [1, 1, 1]
        shape[axis] = -1
        values = (self.size, self.parts, self.words, self.moved)
        return Cuts(*(value.reshape(shape) for value in values))


@lru_cache(maxsize=4096)
def part_sizes(size: int) -> tuple[int, ...]:
    """Return the sizes of tiles to try: `size` over its divisors, and over powers of two, rounded up."""
    small = [part for part in range(1, int(size**0.5) + 1) if size % part == 0]
    parts = {*small, *(size // part for part in small), *(1 << power for power in range(size.bit_length()))}
    return tuple(sorted({-(-size // part) for part in parts}))


@lru_cache(maxsize=4096)
def _plain_cuts(size: int, unit: int = 1) -> Cuts:
    """Cut `size` units; a tile has `unit` times as many indices as units, and a word for each unit."""
    tiles = np.array(part_sizes(size), dtype=np.int64)
    return Cuts(tiles * unit, -(-size // tiles), tiles, np.full_like(tiles, size))


def _row_cuts(product: Product) -> Cuts:
    """Cut the rows of a product; words are those of the inputs for each channel, or column of a plain matrix."""
    window = product.window
    if window is None:
        return _plain_cuts(product.rows)
    lines, width = window.output
    columns = window.touched(width, 1)
    whole = window.touched(lines, 0) * columns
    rows = [
        (images * lines * width, -(-window.images // images), images * whole, window.images * whole)
        for images in part_sizes(window.images)
    ]
    for some in part_sizes(lines)[:-1]:
        parts, rest = -(-lines // some), (lines - 1) % some + 1
        moved = (parts - 1) * window.touched(some, 0) + window.touched(rest, 0)
        rows.append(
            (some * width, window.images * parts, window.touched(some, 0) * columns, window.images * moved * columns)
        )
    return Cuts(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


@lru_cache(maxsize=1 << 15)
def best_tiling(product: Product, array: Array, dataflow: str, memory: Memory) -> Tiling:
    """Return the tiling of `product` with the least off-chip traffic of those that are about as quick as can be."""
    rows = _row_cuts(product).along(0)
    depth = _plain_cuts(product.depth // product.taps, product.taps).along(1)
    columns = _plain_cuts(product.columns).along(2)
    loops = (rows, depth, columns)
    share = 1.0 if product.output_words is None else product.output_words / (product.rows * product.columns)
    tiles = {
        "inputs": rows.words * depth.words,
        "weights": depth.size * columns.size,
        "outputs": np.ceil(rows.size * columns.size * share),
    }
    fits = _fits(product, array, dataflow, memory, loops, tiles)
    if not fits.any():
        raise OptionError(_too_small(product, memory))
    cycles = _cycles(product, array, dataflow, loops)
    moved = {
        "inputs": rows.moved * (product.depth // product.taps),
        "weights": np.array(product.depth * product.columns),
        "outputs": np.array(product.rows * product.columns * share),
    }
    traffic = np.stack([sum(_traffic(product, loops, moved, order)) for order in ORDERS])
    time = np.maximum(cycles, traffic / memory.bits_per_cycle)
    time = np.where(fits, time, inf)
    allowed = time <= (1 + SLACK) * time.min()
    least = traffic[allowed].min()
    found = np.where(allowed & (traffic <= least), time, inf)
    order_index, *place = np.unravel_index(int(found.argmin()), found.shape)
    order = ORDERS[int(order_index)]
    reads, writes = _traffic(product, loops, moved, order)
    shape = np.broadcast_shapes(reads.shape, writes.shape, fits.shape)
    tile = tuple(int(loop.size.ravel()[at]) for loop, at in zip(loops, place, strict=True))
    at = tuple(int(index) for index in place)
    return Tiling(
        tile,  # type: ignore[arg-type]
        tuple(INDICES[loop] for loop in order),  # type: ignore[arg-type]
        product.count * int(np.broadcast_to(reads, shape)[at]),
        product.count * int(np.broadcast_to(writes, shape)[at]),
    )


def _fits(
    product: Product, array: Array, dataflow: str, memory: Memory, loops: tuple[Cuts, ...], tiles: dict[str, Any]
) -> NDArray[np.bool_]:
    """Tell which tilings fit: half of the buffer holds a tile of each matrix, the accumulators the sums of a fold."""
    result, sums = RESULTS[product.operation], product.bits.sums
    bits = {name: getattr(product.bits, name) for name in tiles}
    placement = placement_of(dataflow, product)
    if memory.accumulator_bits == 0 or placement is None:
        bits[result] = max(sums, bits[result])
        return np.asarray(sum(tiles[name] * bits[name] for name in tiles) <= memory.buffer_bits / 2)
    reduction = loops[MISSING[result]]
    width = np.where(reduction.parts > 1, max(sums, bits[result]), bits[result])
    held = sum(tiles[name] * (width if name == result else bits[name]) for name in tiles)
    fits = held <= memory.buffer_bits / 2
    if placement.sum_is != "stationary":
        side = array.rows if placement.sum_is == "down" else array.columns
        steps = loops[INDICES.index(placement.time)].size
        fits = fits & (steps * side * sums <= memory.accumulator_bits)
    return np.asarray(fits)


def _cycles(product: Product, array: Array, dataflow: str, loops: tuple[Cuts, ...]) -> Any:
    """Return the array's cycles of one product; 0 where they do not depend on the tiling."""
    placement = placement_of(dataflow, product)
    if placement is None:
        return np.zeros((1, 1, 1))
    sizes = dict(zip(INDICES, (product.rows + product.inserted_rows, product.depth, product.columns), strict=True))
    cuts = dict(zip(INDICES, loops, strict=True))

    def folds(index: str, side: int) -> Any:
        tile = cuts[index].size
        return sizes[index] // tile * -(-tile // side) + -(-(sizes[index] % tile) // side)

    parts = -(-sizes[placement.time] // cuts[placement.time].size)
    steps = sizes[placement.time] + parts * placement.overhead(array)
    return folds(placement.down, array.rows) * folds(placement.across, array.columns) * steps


def _traffic(
    product: Product, loops: tuple[Cuts, ...], moved: dict[str, Any], order: tuple[int, ...]
) -> tuple[Any, Any]:
    """Return the off-chip bits read and written by one product, for all tilings, with its loops in this order."""
    parts = [loop.parts for loop in loops]
    cut = [part > 1 for part in parts]
    result, reads, writes = RESULTS[product.operation], 0, 0
    for name, words in moved.items():
        loop, width = MISSING[name], getattr(product.bits, name)
        inside = order[order.index(loop) + 1 :]
        again: Any = False
        for inner in inside:
            again = again | cut[inner]
        times = np.where(again, parts[loop], 1)
        if name != result:
            reads = reads + times * words * width
            continue
        partial = (times - 1) * words * product.bits.sums
        # Lines that two tiles share are whole only after the second; the first one's part is read again.
        overlap = (words - distinct_inputs(product)) * product.bits.sums if name == "inputs" else 0
        reads = reads + partial + overlap
        writes = writes + partial + words * width
    return np.asarray(reads), np.asarray(writes)


def distinct_inputs(product: Product) -> int:
    """Return the distinct words of one product's inputs."""
    window = product.window
    if window is None:
        return product.rows * product.depth
    lines, width = window.output
    channels = product.depth // product.taps
    return window.images * channels * window.touched(lines, 0) * window.touched(width, 1)


def _too_small(product: Product, memory: Memory) -> str:
    kilobytes = memory.buffer_bits / 8192
    what = f"a product of {product.rows:,} x {product.depth:,} by {product.depth:,} x {product.columns:,}"
    more = f" or its accumulators of {memory.accumulator_bits / 8192:g} kB" if memory.accumulator_bits else ""
    return f"a global buffer of {kilobytes:g} kB{more} cannot hold two tiles, however small, of {what}; make it larger."
