"""Tilings: which part of a product is on chip at a time, chosen for the least traffic over the off-chip pins.

A product runs as a nest of three loops over tiles of its rows, depth and columns, in one of six orders. Half of the global
buffer holds a tile of each matrix while the other half is filled for the next. A matrix is moved again for each turn of the
loop whose index it does not have, unless only turns of that loop lie between two uses of a tile. A result whose sum is not
whole when it leaves is written and read again at the width of sums.

Rows of a convolution are cut into groups of images and, below one image, into groups of output lines, whose windows overlap:
the lines between are moved twice. Its depth is cut between channels. Tiles are as large as a size divided by its divisors and
by powers of two. All of them, in all orders, are tried at once.

Which is taken depends on the objective (`Memory.objective`). With `balanced`, the default, it is the one with the least
off-chip traffic of those that take at most `SLACK` longer than the quickest one (a cut through time costs the array cycles, and
moving takes time too); with `latency` there is no slack; with `energy` and `edp` the joules count that depend on the tiling: of
off-chip memory, of the buffer, and of the time.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import OptionError
from adagp.hw.dataflows import Array, Memory, Placement, matrices, placement_of
from adagp.hw.product import AXES, RESULTS, Product

SLACK = {"balanced": 0.02, "latency": 0.0}
"""How much longer than the quickest a tiling may take, by the objective."""
INDICES = ("rows", "depth", "columns")
ORDERS = tuple(permutations(range(3)))
"""Loops over rows, depth and columns, outermost first."""
MISSING = {"inputs": 2, "weights": 0, "outputs": 1}
"""The loop whose index a matrix does not have."""

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Tiling:
    """The (rows, depth, columns) of a tile, the loops from the outermost, and the off-chip bits of all `count` products."""

    tile: tuple[int, int, int]
    order: tuple[str, str, str]
    reads: int
    writes: int


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
    for height in part_sizes(lines)[:-1]:
        parts, last_height = -(-lines // height), (lines - 1) % height + 1
        touched = window.touched(height, 0)
        moved = (parts - 1) * touched + window.touched(last_height, 0)
        rows.append((height * width, window.images * parts, touched * columns, window.images * moved * columns))
    return Cuts(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


@dataclass(frozen=True, eq=False)
class Tilings:
    """All tilings of a product by the memory that they take, with what depends on neither the array nor its memories' sizes.

    `loops` are the cuts of rows, depth and columns, `cuts_index` which of them a tiling has. Of the six orders of a tiling only
    that with the least traffic is stored, since an order changes nothing else: its index in `ORDERS`, and its off-chip bits.
    `tile_bits` are the bits of a tile of each matrix, the result at the width of sums; `narrow_tile_bits` those where only a
    result that leaves the chip unfinished has that width.
    """

    loops: tuple[Cuts, Cuts, Cuts]
    cuts_index: Numbers
    orders: Numbers
    reads: Amounts
    writes: Amounts
    traffic: Amounts
    tile_bits: Amounts
    narrow_tile_bits: Amounts

    @property
    def shape(self) -> tuple[int, ...]:
        """How many cuts each index has."""
        return tuple(loop.size.size for loop in self.loops)

    def broadcast(self, values: Any) -> NDArray[Any]:
        """Return one value for each tiling of what depends on some of the cuts only."""
        return np.broadcast_to(values, self.shape).ravel()[self.cuts_index]


@lru_cache(maxsize=2048)
def all_tilings(product: Product) -> Tilings:
    """Return every tiling of `product`; designs that differ in arrays and memories share them."""
    rows = _row_cuts(product).along(0)
    depth = _plain_cuts(product.depth // product.kernel_taps, product.kernel_taps).along(1)
    columns = _plain_cuts(product.columns).along(2)
    loops = (rows, depth, columns)
    share = 1.0 if product.output_words is None else product.output_words / (product.rows * product.columns)
    tiles = {
        "inputs": rows.words * depth.words,
        "weights": depth.size * columns.size,
        "outputs": np.ceil(rows.size * columns.size * share),
    }
    moved = {
        "inputs": rows.moved.astype(float) * (product.depth // product.kernel_taps),
        "weights": np.array(float(product.depth * product.columns)),
        "outputs": np.array(product.rows * product.columns * share),
    }
    shape = np.broadcast_shapes(*(loop.size.shape for loop in loops))
    traffic = [_traffic(product, loops, moved, order) for order in ORDERS]
    reads, writes = (np.stack([np.broadcast_to(bits[way], shape) for bits in traffic]) for way in (0, 1))
    orders = (reads + writes).argmin(axis=0)
    result, sums = RESULTS[product.operation], product.bits.sums
    widths = {name: getattr(product.bits, name) for name in tiles}
    wide = max(sums, widths[result])
    factors = sum(tiles[name] * widths[name] for name in tiles if name != result)
    unfinished = loops[MISSING[result]].parts > 1
    tile_bits = np.broadcast_to(factors + tiles[result] * wide, shape).astype(float).ravel()
    narrow_tile_bits = factors + tiles[result] * np.where(unfinished, wide, widths[result])
    by_size = tile_bits.argsort(kind="stable")
    best_reads, best_writes = (
        np.take_along_axis(bits, orders[np.newaxis], 0).ravel()[by_size] for bits in (reads, writes)
    )
    return Tilings(
        loops,
        by_size,
        orders.ravel()[by_size],
        best_reads,
        best_writes,
        best_reads + best_writes,
        tile_bits[by_size],
        np.broadcast_to(narrow_tile_bits, shape).astype(float).ravel()[by_size],
    )


def best_tiling(
    product: Product, array: Array, dataflow: str, memory: Memory, allowed: NDArray[np.bool_] | None = None
) -> Tiling:
    """Return the tiling that suits the memory's objective best; of those that are `allowed`, if that is given."""
    tilings = all_tilings(product)
    times, least = tiling_times(product, array, dataflow, memory.bits_per_cycle)
    if memory.accumulator_bits and placement_of(dataflow, product) is not None:
        fitting = np.flatnonzero(_fits_accumulators(tilings, product, array, dataflow, memory))
        quickest = times[fitting].min(initial=inf)
    else:  # tilings are sorted by the memory that they take, so those that fit come first
        fitting = np.arange(int(tilings.tile_bits.searchsorted(memory.buffer_bits / 2, side="right")))
        quickest = least[max(0, fitting.size - 1)]
    if allowed is not None:
        fitting = fitting[allowed[fitting]]
        quickest = times[fitting].min(initial=inf)
    if memory.objective in SLACK:
        fitting = fitting[times[fitting] <= (1 + SLACK[memory.objective]) * quickest]
    if not fitting.size:
        raise OptionError(_too_small(product, memory))
    if memory.objective in SLACK:
        criteria = [tilings.traffic, times]
    else:
        joules = _joules(tilings, product, array, dataflow, memory, times)
        criteria = [joules * times if memory.objective == "edp" else joules, times, tilings.traffic]
    # Among equals, take the fewest tiles: hardware needs some more cycles for each tile, which are not modelled.
    rows, depth, columns = (loop.parts for loop in tilings.loops)
    criteria.append(tilings.broadcast(rows * depth * columns))
    for criterion in criteria:
        fitting = fitting[criterion[fitting] <= criterion[fitting].min()]
    # Among those that are left, take the first in the numbering of orders and cuts.
    chosen = int(fitting[(tilings.orders[fitting] * tilings.cuts_index.size + tilings.cuts_index[fitting]).argmin()])
    cuts = np.unravel_index(tilings.cuts_index[chosen], tilings.shape)
    tile = tuple(int(loop.size.flat[at]) for loop, at in zip(tilings.loops, cuts, strict=True))
    return Tiling(
        tile,  # type: ignore[arg-type]
        tuple(INDICES[loop] for loop in ORDERS[tilings.orders[chosen]]),  # type: ignore[arg-type]
        product.count * int(tilings.reads[chosen]),
        product.count * int(tilings.writes[chosen]),
    )


def _joules(tilings: Tilings, product: Product, array: Array, dataflow: str, memory: Memory, times: Amounts) -> Amounts:
    """Return the energy of one product that depends on the tiling, in picojoules: memories, and the chip's time."""
    energies = memory.energies
    reads, writes = _buffer_accesses(tilings, product, array, dataflow)
    joules: Amounts = (
        tilings.reads * energies.dram_read
        + tilings.writes * energies.dram_write
        + (reads + tilings.writes) * energies.buffer_read  # what moves off chip passes through the buffer
        + (writes + tilings.reads) * energies.buffer_write
        + np.ceil(times) * energies.cycle
    )
    return joules


def _buffer_accesses(tilings: Tilings, product: Product, array: Array, dataflow: str) -> tuple[Any, Any]:
    """Return the bits that one product's array reads from and writes to the buffer, as `dataflows.systolic` counts them."""
    placement = placement_of(dataflow, product)
    if placement is None:
        return 0, 0  # they do not depend on the tiling
    sides = {placement.down: array.rows, placement.across: array.columns}
    stays, falls, passes = matrices(placement)
    size = {index: getattr(product, index) for index in INDICES}
    folds_down, folds_across = (_folds(tilings, product, index, side) for index, side in sides.items())
    parts = _time_parts(tilings, product, placement)
    once = {name: size[first] * size[second] for name, (first, second) in AXES.items()}
    moved = {stays: once[stays] * parts, falls: once[falls] * folds_across, passes: once[passes] * folds_down}
    result = RESULTS[product.operation]
    again = (moved[result] - once[result]) * product.bits.sums
    reads = sum(moved[name] * getattr(product.bits, name) for name in AXES if name != result) + again
    writes = again + once[result] * getattr(product.bits, result)
    return tilings.broadcast(reads), tilings.broadcast(writes)


def _fits_accumulators(
    tilings: Tilings, product: Product, array: Array, dataflow: str, memory: Memory
) -> NDArray[np.bool_]:
    """Return which tilings fit: half of the buffer holds a tile of each matrix, the accumulators the sums of a fold."""
    placement = placement_of(dataflow, product)
    assert placement is not None
    fits = tilings.narrow_tile_bits <= memory.buffer_bits / 2
    if placement.sum_is != "stationary":
        side = array.rows if placement.sum_is == "down" else array.columns
        steps = tilings.loops[INDICES.index(placement.time)].size
        fits &= tilings.broadcast(steps * side * product.bits.sums <= memory.accumulator_bits)
    return fits


@lru_cache(maxsize=1024)
def tiling_times(product: Product, array: Array, dataflow: str, bits_per_cycle: float) -> tuple[Amounts, Amounts]:
    """Return the cycles of one product for each tiling, and their running minimum.

    A tiling takes the array's cycles or those of its transfers, whichever are more. As tilings are sorted by the memory that
    they take, the running minimum at a tiling is the time of the quickest one that needs no more memory.
    """
    tilings = all_tilings(product)
    cycles = _array_cycles(tilings, product, array, dataflow)
    times = np.maximum(cycles, tilings.traffic / bits_per_cycle)
    return times, np.minimum.accumulate(times)


def _array_cycles(tilings: Tilings, product: Product, array: Array, dataflow: str) -> Any:
    """Return the array's cycles of one product for each tiling; 0 for a dataflow whose cycles do not depend on it."""
    placement = placement_of(dataflow, product)
    if placement is None:
        return 0
    parts: Any = _time_parts(tilings, product, placement)
    steps = _sizes(product)[placement.time] + placement.overhead(array, parts)
    down, across = (placement.down, array.rows), (placement.across, array.columns)
    return tilings.broadcast(_folds(tilings, product, *down) * _folds(tilings, product, *across) * steps)


def _sizes(product: Product) -> dict[str, int]:
    return dict(zip(INDICES, (product.rows + product.inserted_rows, product.depth, product.columns), strict=True))


def _folds(tilings: Tilings, product: Product, index: str, side: int) -> Numbers:
    """Return how often an index fills a side of the array, for each of its cuts."""
    size, tile = _sizes(product)[index], tilings.loops[INDICES.index(index)].size
    return size // tile * -(-tile // side) + -(-(size % tile) // side)


def _time_parts(tilings: Tilings, product: Product, placement: Placement) -> Numbers:
    """Return into how many parts the steps of a fold are cut, for each cut of their index."""
    parts: Numbers = -(-_sizes(product)[placement.time] // tilings.loops[INDICES.index(placement.time)].size)
    return parts


def _traffic(
    product: Product, loops: tuple[Cuts, ...], moved: dict[str, Any], order: tuple[int, ...]
) -> tuple[Any, Any]:
    """Return the off-chip bits read and written by one product, for all tilings, with its loops in this order."""
    parts = [loop.parts for loop in loops]
    cut = [part > 1 for part in parts]
    result, reads, writes = RESULTS[product.operation], 0, 0
    for name, words in moved.items():
        loop, width = MISSING[name], getattr(product.bits, name)
        # A tile stays on chip while only the loop without its index turns; a turn of any loop inside that one replaces it.
        replaced: Any = False
        for inner in order[order.index(loop) + 1 :]:
            replaced = replaced | cut[inner]
        times = np.where(replaced, parts[loop], 1)
        if name != result:
            reads = reads + times * words * width
            continue
        partial = (times - 1) * words * product.bits.sums
        # Sums of lines that two tiles share are complete only after the second one, which reads the first one's part again.
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
    channels = product.depth // product.kernel_taps
    return window.images * channels * window.touched(lines, 0) * window.touched(width, 1)


def _too_small(product: Product, memory: Memory) -> str:
    kilobytes = memory.buffer_bits / 8192
    what = f"a product of {product.rows:,} x {product.depth:,} by {product.depth:,} x {product.columns:,}"
    more = f" or its accumulators of {memory.accumulator_bits / 8192:g} kB" if memory.accumulator_bits else ""
    return f"a global buffer of {kilobytes:g} kB{more} cannot hold two tiles, however small, of {what}; make it larger."
