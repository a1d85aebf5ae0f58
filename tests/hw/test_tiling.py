"""The tiling against loop nests that are walked tile by tile, with sets of the words that each tile has."""

from collections.abc import Iterator
from itertools import permutations
from itertools import product as nest
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.hw import Accelerator, Array, Bits, Memory, Operation, Product, Window, array_cost
from adagp.hw.dataflows import OBJECTIVES
from adagp.hw.product import AXES, RESULTS, AccessEnergies
from adagp.hw.tiling import SLACK, best_tiling, part_sizes

BITS = Bits(8, 4, 16, 24)
ARRAY = Array(2, 3)
Tile = tuple[int, int, int]
small = st.integers(1, 6)


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Return a plain product, or a convolution without padding."""
    operation = draw(st.sampled_from(list(Operation)))
    if draw(st.booleans()):
        return Product(draw(small), draw(small), draw(small), operation=operation, bits=BITS)
    kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    output = (draw(st.integers(1, 4)), draw(st.integers(1, 2)))
    window = Window(draw(st.integers(1, 3)), (kernel, kernel), output, (stride, stride))
    return Product(
        window.rows, kernel**2 * draw(st.integers(1, 3)), draw(small), window=window, operation=operation, bits=BITS
    )


def ranges(size: int, tile: int) -> list[range]:
    return [range(start, min(start + tile, size)) for start in range(0, size, tile)]


def row_tiles(product: Product, tile: int) -> list[range]:
    """Return the rows of each tile; those of a convolution end with an image, or with a line of it."""
    window = product.window
    if window is None:
        return ranges(product.rows, tile)
    image = window.output[0] * window.output[1]
    if tile >= image:
        return ranges(product.rows, tile)
    return [
        range(start + one.start, start + one.stop)
        for start in range(0, product.rows, image)
        for one in ranges(image, tile)
    ]


def words(product: Product, matrix: str, place: dict[str, range]) -> frozenset[tuple[int, ...]]:
    """Return the words of a matrix that a tile has: of the input of a convolution, the pixels under its windows."""
    window = product.window
    if matrix != "inputs" or window is None:
        one, two = AXES[matrix]
        return frozenset(nest(place[one], place[two]))
    (lines, width), found = window.output, set()
    for row in place["rows"]:
        image, position = divmod(row, lines * width)
        top, left = divmod(position, width)
        for index in place["depth"]:
            channel, tap = divmod(index, product.kernel_taps)
            down, across = divmod(tap, window.kernel[1])
            found.add((image, channel, top * window.stride[0] + down, left * window.stride[1] + across))
    return frozenset(found)


def walk(product: Product, tile: Tile, order: tuple[str, ...]) -> tuple[int, int]:
    """Walk the loops, keep one tile of each matrix, and count the bits that come and go."""
    loops = {
        "rows": row_tiles(product, tile[0]),
        "depth": ranges(product.depth, tile[1]),
        "columns": ranges(product.columns, tile[2]),
    }
    result = RESULTS[product.operation]
    kept: dict[str, tuple[int, ...]] = {}
    visits: list[tuple[int, ...]] = []
    begun: set[tuple[int, ...]] = set()
    reads = writes = 0
    sizes = {}
    for step in nest(*(range(len(loops[index])) for index in order)):
        at = dict(zip(order, step, strict=True))
        place = {index: loops[index][at[index]] for index in order}
        for matrix, axes in AXES.items():
            here = tuple(at[index] for index in axes)
            if kept.get(matrix) == here:
                continue
            kept[matrix] = here
            found = words(product, matrix, place)
            if matrix != result:
                reads += len(found) * getattr(product.bits, matrix)
                continue
            visits.append(here)
            sizes[here] = len(found)
            reads += len(found & begun) * product.bits.sums
            begun |= found
    for number, here in enumerate(visits):
        whole = here not in visits[number + 1 :]
        writes += sizes[here] * (getattr(product.bits, result) if whole else product.bits.sums)
    return product.count * reads, product.count * writes


def tiles(product: Product) -> Iterator[Tile]:
    """Yield the tiles that are to be tried."""
    window = product.window
    rows: list[int] = list(part_sizes(product.rows))
    if window is not None:
        lines, width = window.output
        rows = [images * lines * width for images in part_sizes(window.images)]
        rows += [some * width for some in part_sizes(lines)[:-1]]
    depths = [channels * product.kernel_taps for channels in part_sizes(product.depth // product.kernel_taps)]
    yield from nest(rows, depths, part_sizes(product.columns))


def held(product: Product, tile: Tile) -> int:
    """Return the bits of the largest tile of each matrix; results have the width of sums."""
    bits = 0
    place = {
        "rows": row_tiles(product, tile[0])[0],
        "depth": range(tile[1]),
        "columns": range(tile[2]),
    }
    for matrix in AXES:
        width = getattr(product.bits, matrix)
        wide = max(width, product.bits.sums) if matrix == RESULTS[product.operation] else width
        bits += len(words(product, matrix, place)) * wide
    return bits


@settings(max_examples=120, deadline=None)
@given(products(), st.integers(40, 4000))
def test_traffic_is_that_of_the_loops_and_no_tiling_that_fits_has_less(product: Product, buffer: int) -> None:
    fitting = [tile for tile in tiles(product) if 2 * held(product, tile) <= buffer]
    memory = Memory(buffer)
    if not fitting:
        with pytest.raises(OptionError):
            best_tiling(product, ARRAY, "rs", memory)
        return
    found = best_tiling(product, ARRAY, "rs", memory)
    assert found.tile in fitting
    assert (found.reads, found.writes) == walk(product, found.tile, found.order)
    least = min(
        sum(walk(product, tile, order)) for tile in fitting for order in permutations(("rows", "depth", "columns"))
    )
    assert found.reads + found.writes == least


@pytest.mark.medium
@settings(max_examples=40, deadline=None)
@given(products(), st.sampled_from(("ws", "os", "is")), st.integers(300, 4000), st.sampled_from((8.0, 64.0, inf)))
def test_a_tiling_is_about_as_quick_as_any(product: Product, dataflow: str, buffer: int, rate: float) -> None:
    fitting = [tile for tile in tiles(product) if 2 * held(product, tile) <= buffer]
    if not fitting:
        return

    def time(tile: Tile, order: tuple[str, ...]) -> float:
        cut = Product(**{**vars(product), "tile": tile})
        return max(array_cost(dataflow, cut, ARRAY).cycles, sum(walk(product, tile, order)) / rate)

    found = best_tiling(product, ARRAY, dataflow, Memory(buffer, 0, rate))
    orders = tuple(permutations(("rows", "depth", "columns")))
    quickest = min(time(tile, order) for tile in fitting for order in orders)
    assert time(found.tile, found.order) <= (1 + SLACK["balanced"]) * quickest + 1e-9


@pytest.mark.medium
@settings(max_examples=30, deadline=None)
@given(
    products(),
    st.sampled_from(("ws", "os", "is")),
    st.integers(300, 4000),
    st.sampled_from(("latency", "energy", "edp")),
)
def test_a_tiling_is_the_best_for_its_objective(product: Product, dataflow: str, buffer: int, objective: str) -> None:
    fitting = [tile for tile in tiles(product) if 2 * held(product, tile) <= buffer]
    if not fitting:
        return
    energies = AccessEnergies(60.0, 60.0, 2.0, 2.0, 150.0)

    def value(tile: Tile, order: tuple[str, ...]) -> float:
        cost = array_cost(dataflow, Product(**{**vars(product), "tile": tile}), ARRAY)
        reads, writes = walk(product, tile, order)
        time = max(cost.cycles, (reads + writes) / 8)
        moved = cost.moving(reads, writes)
        joules = 60 * moved.dram_bits + 2 * moved.buffer_bits + 150 * ceil(time / product.count) * product.count
        return {"latency": time, "energy": joules, "edp": joules * time}[objective]

    found = best_tiling(product, ARRAY, dataflow, Memory(buffer, 0, 8.0, objective, energies))
    orders = tuple(permutations(("rows", "depth", "columns")))
    assert value(found.tile, found.order) <= min(value(tile, order) for tile in fitting for order in orders) * (
        1 + 1e-9
    )


def test_objectives_differ() -> None:
    """Cutting time costs cycles and saves traffic: the objectives take different tilings of one product."""
    found = {}
    for objective in OBJECTIVES:
        accelerator = Accelerator(buffer_kilobytes=16, tiling=objective)
        cost = accelerator.with_stalls(accelerator.tiled_cost(Product(3136, 576, 64)))
        found[objective] = cost.cycles, accelerator.energy_model().energy(cost).joules
    assert found["latency"][0] == min(cycles for cycles, _ in found.values())
    assert found["latency"][0] < found["energy"][0]
    assert found["energy"][1] == min(joules for _, joules in found.values())
    assert found["energy"][1] < found["latency"][1]
    assert found["edp"][0] * found["edp"][1] == min(cycles * joules for cycles, joules in found.values())


def test_accumulators_limit_the_steps_of_a_fold() -> None:
    product = Product(1000, 30, 20)
    for kilobytes, longest in ((0.5, 1024 * 4 // 32 // 3), (8, 1000)):
        found = best_tiling(product, ARRAY, "ws", Memory(1e9, kilobytes * 8192))
        assert found.tile[0] <= longest
        assert -(-1000 // found.tile[0]) >= -(-1000 // longest)


def test_what_is_cut_costs_the_array_its_filling_again() -> None:
    product = Product(1000, 30, 20)
    found = best_tiling(product, ARRAY, "ws", Memory(1e9, 0.5 * 8192))
    whole, cut = (array_cost("ws", Product(1000, 30, 20, tile=tile), ARRAY).cycles for tile in (None, found.tile))
    assert cut > whole


def test_sizes_to_try_are_divisors_and_halves() -> None:
    assert part_sizes(12) == (1, 2, 3, 4, 6, 12)
    assert part_sizes(7) == (1, 2, 4, 7)
