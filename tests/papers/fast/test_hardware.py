"""The array for block floating point: exact sums, passes, cycles against cells that are simulated one by one."""

from dataclasses import replace
from fractions import Fraction
from itertools import product as pairs

import numpy as np
import pytest
from tests.papers.fast.chunk_serial import chunk_serial_sum

from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.dataflows import Array, Memory
from adagp.hw.product import Operation, Product, Window
from adagp.papers.fast.hardware import BlockWidths, chunk_serial_cycles, grouped


def test_chunk_serial_sums_are_integer_products_for_all_groups_of_two() -> None:
    numbers = range(-3, 4)
    for first in pairs(numbers, repeat=2):
        for second in pairs(numbers, repeat=2):
            expected = sum(one * two for one, two in zip(first, second, strict=True))
            assert chunk_serial_sum(first, second, (2, 2)) == (expected, 1)


@pytest.mark.parametrize(
    ("first", "second", "passes"), [(2, 2, 1), (4, 2, 2), (2, 4, 2), (4, 4, 4), (6, 4, 6), (6, 6, 9)]
)
def test_chunk_serial_sums_of_drawn_groups(first: int, second: int, passes: int) -> None:
    random = np.random.default_rng(first * 10 + second)
    for _ in range(20):
        one, two = (random.integers(1 - 2**bits, 2**bits, 16).tolist() for bits in (first, second))
        assert chunk_serial_sum(one, two, (first, second)) == (int(np.dot(one, two)), passes)


@pytest.mark.parametrize(
    ("widths", "passes"),
    [
        ((2, 2, 2), 3),
        *((widths, 5) for widths in ((4, 2, 2), (2, 4, 2), (2, 2, 4))),
        *((widths, 8) for widths in ((4, 4, 2), (4, 2, 4), (2, 4, 4))),
        ((4, 4, 4), 12),
    ],
)
def test_passes_of_a_training_step(widths: tuple[int, int, int], passes: int) -> None:
    assert BlockWidths(*widths).training_passes == passes


Groups = list[list[tuple[list[int], int]]]
"""Rows of (signed magnitudes, exponent of a step)."""


def to_groups(matrix: np.ndarray, group: int, bits: int) -> Groups:
    """Return rows of (signed magnitudes, exponent of a step), truncated; rows are filled up with zeros."""
    rows = []
    for row in matrix:
        row = np.concatenate([row, np.zeros(-len(row) % group)])
        line = []
        for start in range(0, len(row), group):
            part = row[start : start + group]
            step = int(np.frexp(np.abs(part).max())[1]) - bits
            line.append(([int(value / 2.0**step) for value in part], step))
        rows.append(line)
    return rows


def weight_stationary(
    inputs: Groups,
    weights: Groups,
    bits: tuple[int, int],
    side: Array,
) -> tuple[list[list[Fraction]], int]:
    """Run one fold cell by cell: weights are loaded chunk by chunk, each input group passes through for each pair of chunks.

    Cell (row, column) holds group `row` of output `column`; values move right, sums down. Returns outputs and cycles.
    """
    chunks = [-(-one // 2) for one in bits]
    passes = chunks[0] * chunks[1]
    clock = side.rows * chunks[1]
    steps = len(inputs) * passes
    values: list[list[int | None]] = [[None] * side.columns for _ in range(side.rows)]
    sums = [[Fraction(0)] * side.columns for _ in range(side.rows)]
    outputs = [[Fraction(0)] * side.columns for _ in inputs]
    left, start = [0] * side.columns, clock
    while left[-1] < steps:
        for row, column in pairs(reversed(range(side.rows)), reversed(range(side.columns))):
            step = clock - start - row
            entering = step if 0 <= step < steps else None
            values[row][column] = values[row][column - 1] if column else entering
            value = values[row][column]
            if value is None:
                continue
            above = sums[row - 1][column] if row else Fraction(0)
            sums[row][column] = above + _one_pass(inputs, weights, value, row, column, chunks)
            if row == side.rows - 1:
                outputs[value // passes][column] += sums[row][column]
                left[column] += 1
        clock += 1
    return outputs, clock


def _one_pass(inputs: Groups, weights: Groups, value: int, row: int, column: int, chunks: list[int]) -> Fraction:
    number, which = divmod(value, chunks[0] * chunks[1])
    if row >= len(inputs[number]) or column >= len(weights):
        return Fraction(0)
    (first, step), (second, other) = inputs[number][row], weights[column][row]
    places = divmod(which, chunks[1])
    parts = [
        [(abs(one) >> 2 * place & 3) * (-1 if one < 0 else 1) for one in group]
        for group, place in zip((first, second), places, strict=True)
    ]
    tree = sum(one * two for one, two in zip(*parts, strict=True))
    return Fraction(int(tree)) * Fraction(2) ** int(2 * sum(places) + step + other)


@pytest.mark.parametrize(("activations", "weights"), [(2, 2), (4, 2), (2, 4), (4, 4)])
def test_an_array_of_cells_makes_the_exact_product_in_the_cycles_of_the_closed_form(
    activations: int, weights: int
) -> None:
    random = np.random.default_rng(activations + weights)
    group, side = 4, Array(3, 2)
    inputs, matrix = random.normal(size=(5, 11)), random.normal(size=(2, 11))
    first, second = to_groups(inputs, group, activations), to_groups(matrix, group, weights)
    outputs, cycles = weight_stationary(first, second, (activations, weights), side)
    floats = [
        np.array([[value * 2.0**step for part, step in row for value in part] for row in rows])
        for rows in (first, second)
    ]
    assert [[float(one) for one in row] for row in outputs] == (floats[0] @ floats[1].T).tolist()
    widths = BlockWidths(weights, activations, 4, group)
    product = grouped(Product(5, 11, 2), widths)
    assert (product.rows, product.depth, product.columns) == (5, 3, 2)
    assert sum(chunk_serial_cycles(product, side, "ws", widths)) == cycles


SHAPES = (Product(70, 300, 50), Product(8 * 49, 9 * 40, 33, window=Window(8, (3, 3), (7, 7))))


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("product", SHAPES)
def test_two_bits_take_a_quarter_of_the_streaming_cycles_of_four(
    product: Product, operation: Operation, dataflow: str
) -> None:
    streaming = {}
    for bits in (2, 4):
        widths = BlockWidths(bits, bits, bits)
        cut = grouped(product.gradient(operation), widths)
        streaming[bits], _ = chunk_serial_cycles(cut, Array(12, 15), dataflow, widths)
    assert 4 * streaming[2] == streaming[4]


@pytest.mark.parametrize(("operation", "loads"), [(Operation.FORWARD, 3 * 2), (Operation.WEIGHT_GRADIENT, 3 - 1)])
def test_a_cut_through_time_loads_what_stays_again(operation: Operation, loads: int) -> None:
    """Weight stationary, 30 steps in 3 parts, on 2 x 3 folds: weights of 2 chunks for each part, sums for all but the first."""
    product = Product(30, 8, 6, operation=operation, tile=(10, 8, 6))
    other, folds = chunk_serial_cycles(product, Array(4, 2), "ws", BlockWidths(4, 2, 2))[1], 2 * 3
    assert other == folds * (loads * 4 + 3 * (4 + 2 - 2))


def test_groups_lie_along_the_index_that_is_summed() -> None:
    product, widths = SHAPES[1], BlockWidths(2, 4, 4)
    forward, inputs, weights = (grouped(product.gradient(operation), widths) for operation in Operation)
    assert (forward.rows, forward.depth, forward.columns) == (8 * 49, 9 * 3, 33)
    assert (inputs.rows, inputs.depth, inputs.columns) == (8 * 49, 9 * 40, 3)
    assert (weights.rows, weights.depth, weights.columns) == (49, 9 * 40, 33)
    assert (forward.bits.inputs, forward.bits.weights, forward.bits.outputs) == (100, 52, 16)
    assert (inputs.bits.outputs, inputs.bits.weights) == (100, 52)
    assert (weights.bits.inputs, weights.bits.outputs, weights.bits.sums) == (100, 100, 32)


def test_off_chip_bits_are_those_of_the_groups() -> None:
    """A product that fits the buffer: every operand is read once, the result is written once in words."""
    accelerator = Accelerator(buffer_kilobytes=4096, arithmetic=BlockWidths(2, 4, 4))
    cost = accelerator.tiled_cost(Product(64, 128, 32))
    assert cost.dram_reads == 64 * 8 * 100 + 8 * 32 * 52
    assert cost.dram_writes == 64 * 32 * 16
    assert cost.macs == 64 * 8 * 32 * 2  # passes of cells


def test_a_pass_costs_about_a_sixteenth_of_its_energy_for_each_number() -> None:
    assert BlockWidths().mac_picojoules == pytest.approx(1.64, abs=0.01)


def test_other_dataflows_are_rejected() -> None:
    accelerator = Accelerator(dataflow="rs", arithmetic=BlockWidths())
    with pytest.raises(OptionError) as rejected:
        accelerator.tiled_cost(replace(SHAPES[0]))
    assert str(rejected.value) == "block floating point runs on systolic dataflows; choose from: ws, os, is."


def test_memory_is_what_limits_the_tiling() -> None:
    small, large = (
        Accelerator(buffer_kilobytes=size, arithmetic=BlockWidths()).tiled_cost(Product(512, 1024, 512))
        for size in (16, 4096)
    )
    assert small.dram_bits > large.dram_bits
    assert isinstance(Accelerator().memory, Memory)
