from collections import Counter
from dataclasses import replace
from itertools import product as pairs

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hw.brute_force import PLACEMENTS, Matrix, array_tiles, load_tile, systolic_product

from adagp.errors import OptionError
from adagp.hw import DATAFLOWS, Array, Bits, Cost, Operation, Product, Window, array_cost, parse_array, shaped_like
from adagp.hw.product import AXES, RESULTS

SYSTOLIC = ("ws", "os", "is")
small = st.integers(1, 7)
arrays = st.builds(Array, st.integers(1, 5), st.integers(1, 5))

X = np.array([[1, 4], [5, 2]])
W = np.array([[2, 3], [0, 1]])
DY = np.array([[3, 4], [1, 2]])
LECTURE = [
    (Operation.FORWARD, X, W, [[2, 7], [10, 17]]),
    (Operation.INPUT_GRADIENT, DY, W, [[18, 4], [8, 2]]),
    (Operation.WEIGHT_GRADIENT, X, DY, [[8, 14], [14, 20]]),
]


@pytest.mark.parametrize("dataflow", SYSTOLIC)
@pytest.mark.parametrize(("operation", "left", "right", "expected"), LECTURE, ids=[row[0].value for row in LECTURE])
def test_the_lectures_examples_run_through_the_array(
    dataflow: str, operation: Operation, left: Matrix, right: Matrix, expected: list[list[int]]
) -> None:
    result, cycles = systolic_product(dataflow, operation, left, right, Array(2, 2))
    assert result.tolist() == expected
    assert cycles == array_cost(dataflow, Product(2, 2, 2, operation=operation), Array(2, 2)).cycles


def test_the_lectures_mapping_is_weight_stationary_with_accumulating_weight_gradient() -> None:
    cycles = [array_cost("ws", Product(2, 2, 2, operation=operation), Array(2, 2)).cycles for operation in Operation]
    assert cycles == [6, 6, 4]


@settings(max_examples=60, deadline=None)
@given(small, small, small, arrays, st.sampled_from(SYSTOLIC), st.sampled_from(list(Operation)), st.integers(0, 99))
def test_cycles_and_products_are_those_of_the_array_simulated_pe_by_pe(
    rows: int, depth: int, columns: int, array: Array, dataflow: str, operation: Operation, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    inputs, weights, outputs = (
        draw.integers(-9, 9, size) for size in ((rows, depth), (depth, columns), (rows, columns))
    )
    left, right, expected = {
        Operation.FORWARD: (inputs, weights, inputs @ weights),
        Operation.INPUT_GRADIENT: (outputs, weights, outputs @ weights.T),
        Operation.WEIGHT_GRADIENT: (inputs, outputs, inputs.T @ outputs),
    }[operation]
    result, cycles = systolic_product(dataflow, operation, left, right, array)
    assert (result == expected).all()
    assert array_cost(dataflow, Product(rows, depth, columns, operation=operation), array).cycles == cycles


@pytest.mark.parametrize(
    ("dataflow", "product", "cycles"),
    [
        # Compute cycles that SCALE-Sim 3.0.0 reports on 12x15 PEs, plus one for its counting from 0.
        ("ws", Product(16, 27, 20), 318),
        ("os", Product(16, 27, 20), 208),
        ("is", Product(16, 27, 20), 342),
    ],
)
def test_agrees_with_scale_sim(dataflow: str, product: Product, cycles: int) -> None:
    assert array_cost(dataflow, product, Array(12, 15)).cycles == cycles


def pieces(size: int, tile: int, side: int) -> list[tuple[int, int]]:
    """Return the beginnings and lengths of what lies along a side of the array at a time: whole tiles, folded."""
    return [
        (place, min(side, start + tile - place, size - place))
        for start in range(0, size, tile)
        for place in range(start, min(start + tile, size), side)
    ]


def bits_at_the_edge(dataflow: str, product: Product, array: Array) -> tuple[int, int]:
    """Walk the folds and count every bit that enters or leaves the array; sums are wide until they are whole."""
    sizes = {"rows": product.rows, "depth": product.depth, "columns": product.columns}
    tile = dict(zip(sizes, product.tile or sizes.values(), strict=True))
    stationary = PLACEMENTS[dataflow].stationary
    time = next(axis for axis in sizes if axis not in AXES[stationary])
    down, across = AXES[stationary]
    result = RESULTS[product.operation]
    reads = 0
    visits: Counter[tuple[int, ...]] = Counter()
    words: dict[tuple[int, ...], int] = {}
    for top, left, begin in pairs(
        pieces(sizes[down], tile[down], sides(dataflow, array)[0]),
        pieces(sizes[across], tile[across], sides(dataflow, array)[1]),
        pieces(sizes[time], tile[time], tile[time]),
    ):
        start, extent = (
            dict(zip((down, across, time), one, strict=True)) for one in zip(top, left, begin, strict=True)
        )
        for matrix, (one, two) in AXES.items():
            amount = extent[one] * extent[two]
            if matrix != result:
                reads += amount * getattr(product.bits, matrix)
                continue
            place = (start[one], start[two])
            visits[place] += 1
            words[place] = amount
    again = sum((visits[place] - 1) * words[place] for place in visits) * product.bits.sums
    return reads + again, again + sum(words.values()) * getattr(product.bits, result)


def sides(dataflow: str, array: Array) -> tuple[int, int]:
    """The input-stationary array has depth down and rows across; here axes are named (rows, depth)."""
    return (array.columns, array.rows) if dataflow == "is" else (array.rows, array.columns)


@settings(max_examples=80, deadline=None)
@given(small, small, small, arrays, st.sampled_from(SYSTOLIC), st.sampled_from(list(Operation)), st.data())
def test_buffer_accesses_are_those_of_a_walk_over_the_folds(
    rows: int, depth: int, columns: int, array: Array, dataflow: str, operation: Operation, data: st.DataObject
) -> None:
    tile = data.draw(st.one_of(st.none(), st.tuples(*(st.integers(1, size) for size in (rows, depth, columns)))))
    product = Product(rows, depth, columns, operation=operation, bits=Bits(8, 4, 16, 24), tile=tile)
    cost = array_cost(dataflow, product, array)
    assert (cost.buffer_reads, cost.buffer_writes) == bits_at_the_edge(dataflow, product, array)


@settings(max_examples=40, deadline=None)
@given(small, small, small, arrays, st.sampled_from(SYSTOLIC), st.sampled_from(list(Operation)), st.integers(1, 7))
def test_a_cut_through_time_runs_as_so_many_products_and_loads_sums_to_add_to(
    rows: int, depth: int, columns: int, array: Array, dataflow: str, operation: Operation, steps: int
) -> None:
    sizes = {"rows": rows, "depth": depth, "columns": columns}
    time = next(axis for axis in sizes if axis not in AXES[PLACEMENTS[dataflow].stationary])
    tile = {**sizes, time: min(steps, sizes[time])}
    product = Product(rows, depth, columns, operation=operation)
    whole = replace(product, tile=(tile["rows"], tile["depth"], tile["columns"]))
    parts = [min(steps, sizes[time] - start) for start in range(0, sizes[time], steps)]
    cut = [array_cost(dataflow, replace(product, **{time: part}), array).cycles for part in parts]  # type: ignore[arg-type]
    again = loaded_sums(dataflow, product, array) if RESULTS[operation] == PLACEMENTS[dataflow].stationary else 0
    assert array_cost(dataflow, whole, array).cycles == sum(cut) + (len(parts) - 1) * again


def loaded_sums(dataflow: str, product: Product, array: Array) -> int:
    """Return the cycles in which all sums are shifted into the array, a row a cycle, fold by fold."""
    first, second = (getattr(product, axis) for axis in AXES[PLACEMENTS[dataflow].stationary])
    sums = np.zeros((second, first) if dataflow == "is" else (first, second), dtype=np.int64)
    return sum(load_tile(sums[rows, columns], array)[1] for rows, columns in array_tiles(sums, array))


@settings(max_examples=40, deadline=None)
@given(small, small, small, arrays, st.sampled_from(SYSTOLIC), st.integers(0, 99))
def test_an_ordinary_gradient_is_a_forward_product_on_the_array_simulated_pe_by_pe(
    rows: int, depth: int, columns: int, array: Array, dataflow: str, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    inputs, weights, outputs = (
        draw.integers(-9, 9, size) for size in ((rows, depth), (depth, columns), (rows, columns))
    )
    for operation, left, right in (
        (Operation.INPUT_GRADIENT, outputs, weights.T),
        (Operation.WEIGHT_GRADIENT, inputs.T, outputs),
    ):
        result, cycles = systolic_product(dataflow, Operation.FORWARD, left, right, array)
        assert (result == left @ right).all()
        same = array_cost(
            dataflow, Product(left.shape[0], left.shape[1], right.shape[1], bits=Bits(16, 16, 16, 16)), array
        )
        product = Product(rows, depth, columns, bits=Bits(16, 16, 16, 16)).gradient(operation, ordinary=True)
        assert array_cost(dataflow, product, array) == same
        assert same.cycles == cycles


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 4),
    arrays,
    st.sampled_from(list(Operation)),
)
def test_conservation(rows: int, depth: int, columns: int, count: int, array: Array, operation: Operation) -> None:
    product = Product(rows, depth, columns, count, operation=operation)
    for dataflow in DATAFLOWS:
        cost = array_cost(dataflow, product, array)
        assert cost.macs == count * rows * depth * columns
        assert cost.cycles * array.pes >= cost.macs
        results = {
            Operation.FORWARD: rows * columns,
            Operation.INPUT_GRADIENT: rows * depth,
            Operation.WEIGHT_GRADIENT: depth * columns,
        }
        assert cost.buffer_writes >= 16 * count * results[operation]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from(list(DATAFLOWS)))
def test_more_pes_are_never_slower_for_shapes_they_divide(rows: int, depth: int, columns: int, dataflow: str) -> None:
    product = Product(64 * rows, 64 * depth, 64 * columns)
    cycles = [array_cost(dataflow, product, Array(side, side)).cycles for side in (1, 2, 4, 8, 16, 32)]
    assert cycles == sorted(cycles, reverse=True)


def test_groups_run_one_after_the_other() -> None:
    for dataflow in SYSTOLIC:
        assert (
            array_cost(dataflow, Product(9, 8, 7, count=5), Array(3, 4))
            == array_cost(dataflow, Product(9, 8, 7), Array(3, 4)) * 5
        )


def test_unknown_dataflow_names_the_options() -> None:
    with pytest.raises(OptionError) as raised:
        array_cost("wss", Product(1, 1, 1), Array(1, 1))
    assert str(raised.value) == "unknown dataflow 'wss'. Did you mean 'ws'? Choose from: is, os, rs, ws."


def test_a_dataflow_of_your_own_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATAFLOWS, "_things", dict(DATAFLOWS._things))

    @DATAFLOWS.register("ideal")
    def ideal(product: Product, array: Array) -> Cost:
        return Cost(-(-product.macs // array.pes), product.macs)

    assert array_cost("ideal", Product(10, 10, 10), Array(3, 3)).cycles == 112


@pytest.mark.parametrize("dataflow", list(DATAFLOWS))
def test_zero_insertion_slows_the_gradients_of_strided_convolutions_only(dataflow: str) -> None:
    strided = Product(2 * 64, 90, 40, window=Window(2, (3, 3), (8, 8), (2, 2)))
    plain = Product(2 * 64, 90, 40, window=Window(2, (3, 3), (8, 8)))
    for operation in Operation:
        exact, spread = (
            array_cost(dataflow, strided.gradient(operation, zero_insertion), Array(12, 15))
            for zero_insertion in (False, True)
        )
        assert (spread.cycles > exact.cycles) == (operation is not Operation.FORWARD)
        assert spread.macs == exact.macs
        assert plain.gradient(operation, True) == plain.gradient(operation)


def test_zero_insertion_streams_the_inputs_resolution() -> None:
    strided = Product(64, 12, 15, window=Window(1, (1, 1), (8, 8), (2, 2)))
    assert strided.gradient(Operation.WEIGHT_GRADIENT, zero_insertion=True).inserted_rows == 15 * 15 - 64
    cost = array_cost("ws", strided.gradient(Operation.WEIGHT_GRADIENT, zero_insertion=True), Array(12, 15))
    assert cost.cycles == 15 * 15 + 25


def test_reads_rows_and_columns() -> None:
    assert parse_array(" 12x15 ") == Array(12, 15)
    assert str(Array(12, 15)) == "12x15"
    assert Array(12, 15).pes == 180


@pytest.mark.parametrize("text", ["0x5", "5x0", "-1x5"])
def test_rejects_an_array_without_pes(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_array(text)
    assert str(raised.value) == (
        f"array {text} is not allowed: rows and columns must be at least 1, for example 12x15."
    )


@pytest.mark.parametrize("text", ["", "12", "12x", "12X15", "axb", "12x15x3"])
def test_rejects_what_is_no_array(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_array(text)
    assert str(raised.value) == f"cannot read the array '{text}'; write ROWSxCOLUMNS, for example 12x15."


def test_rejects_an_absurd_array() -> None:
    with pytest.raises(OptionError) as raised:
        parse_array("12x1000000")
    assert str(raised.value) == "array 12x1000000 is not allowed: rows and columns must be at most 65,536."


def test_shapes_to_choose_from_stay_within_budget_and_shape() -> None:
    found = shaped_like(Array(12, 15), 1.1)
    assert found[0] == Array(12, 15)
    assert {Array(11, 18), Array(11, 16), Array(15, 12), Array(9, 20)} <= set(found)
    assert all(array.pes <= 198 and 0.4 <= array.rows / array.columns <= 1.6 for array in found)
    assert len(set(found)) == len(found)
