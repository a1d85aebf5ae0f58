"""Tiled products tile by tile: the sums of what the tiles take are the cost model's; cycles by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.hw import Array, Bits, Memory, Operation, Product, Window
from adagp.hw.dataflows import SYSTOLIC, array_cost
from adagp.hw.tile_steps import TileStep, double_buffered_cycles, tile_steps
from adagp.hw.tiling import best_tiling

small = st.integers(1, 9)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(small, small, small),
    operation=st.sampled_from(list(Operation)),
    dataflow=st.sampled_from(list(SYSTOLIC)),
    buffer=st.integers(200, 4000),
    rate=st.integers(1, 64),
)
def test_tiles_add_up_to_the_product(
    sizes: tuple[int, int, int], operation: Operation, dataflow: str, buffer: int, rate: int
) -> None:
    """And double buffering never takes less than the cost model, which hides any transfer behind any work."""
    product, array = Product(*sizes, operation=operation, bits=Bits(8, 4, 16, 24)), Array(2, 3)
    tiling = best_tiling(product, array, dataflow, Memory(buffer, bits_per_cycle=rate))
    steps = tile_steps(product, tiling, array, dataflow)
    whole = Product(*sizes, operation=operation, bits=product.bits, tile=tiling.tile)
    assert sum(step.loads for step in steps) == tiling.reads
    assert sum(step.stores for step in steps) == tiling.writes
    cycles = array_cost(dataflow, whole, array).cycles
    assert sum(step.cycles for step in steps) == cycles
    longest = max(cycles, (tiling.reads + tiling.writes) / rate)
    assert longest <= double_buffered_cycles(steps, rate) <= 2 * longest + len(steps) + 2


def test_double_buffering_by_hand() -> None:
    """The first tile comes, then work and transfers side by side, then the last result leaves."""
    steps = [TileStep(10, 8, 0), TileStep(10, 40, 6), TileStep(10, 4, 12)]
    assert double_buffered_cycles(steps, 2) == 4 + max(10, 20) + max(10, 2) + max(10, 3) + 6
    assert double_buffered_cycles(steps[:1], 3) == 3 + 10


def test_convolutions_are_rejected() -> None:
    window = Window(1, (3, 3), (4, 4))
    product = Product(16, 9, 4, window=window)
    tiling = best_tiling(product, Array(2, 3), "ws", Memory(1e6))
    with pytest.raises(
        OptionError, match=r"^tiles of a convolution overlap; only plain products are walked tile by tile\.$"
    ):
        tile_steps(product, tiling, Array(2, 3), "ws")
