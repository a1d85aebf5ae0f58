"""A tiled product tile by tile: what comes on chip before each tile, what leaves after it, and when double buffering hides it.

The accelerator model takes the array's cycles or those of all transfers, whichever are more: any transfer may hide behind any
work. Memory for two tiles hides less: the first tile comes before any work, the last result leaves after it, and during the
work on a tile only the result of the tile before leaves and the next tile comes. `double_buffered_cycles` counts that; the DMA
of `adagp.rtl` does it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as nest
from math import ceil

from adagp.errors import OptionError
from adagp.hw.dataflows import Array, array_cost, fold_counts, placement_of
from adagp.hw.product import AXES, RESULTS, Product
from adagp.hw.tiling import INDICES, Tiling


@dataclass(frozen=True)
class TileVisit:
    """A tile in the order of the loops.

    extents   its rows, depth and columns
    loads     the factors of which a new tile is loaded before it
    adds      whether its products are added to sums of earlier tiles, and `returns`, whether these are read from memory
    leaves    whether the tile of the result is written after it, and `whole`, whether its sums are complete by then
    """

    extents: dict[str, int]
    loads: tuple[str, ...]
    adds: bool
    returns: bool
    leaves: bool
    whole: bool


def visits(product: Product, tiling: Tiling) -> Iterator[TileVisit]:
    """Yield the tiles of one plain product, in the order of the tiling's loops."""
    if product.window is not None:
        raise OptionError("tiles of a convolution overlap; only plain products are walked tile by tile.")
    result = RESULTS[product.operation]
    summed = next(index for index in INDICES if index not in AXES[result])
    sizes = dict(zip(INDICES, (product.rows, product.depth, product.columns), strict=True))
    tile = dict(zip(INDICES, tiling.tile, strict=True))
    loops = [range(0, sizes[index], tile[index]) for index in tiling.order]
    starts = [dict(zip(tiling.order, indices, strict=True)) for indices in nest(*loops)]
    previous: dict[str, int] | None = None
    for number, here in enumerate(starts):
        new = {name for name in AXES if previous is None or _place(name, here) != _place(name, previous)}
        behind = starts[number + 1] if number + 1 < len(starts) else None
        yield TileVisit(
            {index: min(tile[index], sizes[index] - here[index]) for index in INDICES},
            tuple(name for name in AXES if name in new and name != result),
            adds=here[summed] > 0,
            returns=result in new and here[summed] > 0,
            leaves=behind is None or _place(result, behind) != _place(result, here),
            whole=here[summed] + tile[summed] >= sizes[summed],
        )
        previous = here


def _place(name: str, start: dict[str, int]) -> tuple[int, ...]:
    return tuple(start[index] for index in AXES[name])


@dataclass(frozen=True)
class TileStep:
    """The array's cycles for a tile, the off-chip bits that must come before it, and those that leave after it."""

    cycles: int
    loads: int
    stores: int


def tile_steps(product: Product, tiling: Tiling, array: Array, dataflow: str) -> list[TileStep]:
    """Return the tiles of one plain product with what they take."""
    result, steps = RESULTS[product.operation], []
    for visit in visits(product, tiling):
        words = {name: visit.extents[first] * visit.extents[second] for name, (first, second) in AXES.items()}
        rows, depth, columns = (visit.extents[index] for index in INDICES)
        part = replace(product, rows=rows, depth=depth, columns=columns, count=1, tile=None)
        loads = sum(words[name] * getattr(product.bits, name) for name in visit.loads)
        sums, whole = words[result] * product.bits.sums, words[result] * getattr(product.bits, result)
        steps.append(
            TileStep(
                array_cost(dataflow, part, array).cycles + visit.adds * _reload_cycles(part, array, dataflow),
                loads + visit.returns * sums,
                visit.leaves * (whole if visit.whole else sums),
            )
        )
    return steps


def _reload_cycles(product: Product, array: Array, dataflow: str) -> int:
    """Return the cycles in which sums that stay in the PEs are loaded again before each fold, to be added to."""
    placement = placement_of(dataflow, product)
    if placement is None or placement.sum_is != "stationary":
        return 0
    down, across, *_ = fold_counts(product, array, placement)
    return down * across * array.rows


def double_buffered_cycles(steps: Sequence[TileStep], bits_per_cycle: float) -> int:
    """Return the cycles of a product with two tiles' worth of memory: while a tile is worked on, the result of the tile before
    leaves and what the next one needs comes."""

    def transfer(bits: Iterable[int]) -> int:
        return ceil(sum(bits) / bits_per_cycle)

    cycles = transfer([steps[0].loads])
    for number, step in enumerate(steps):
        stores = [steps[number - 1].stores] if number else []
        loads = [steps[number + 1].loads] if number + 1 < len(steps) else []
        cycles += max(step.cycles, transfer(stores + loads))
    return cycles + transfer([steps[-1].stores])
