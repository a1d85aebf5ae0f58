"""Dataflows: short registered functions from a product on an array to its cycles and buffer accesses.

On a systolic array two of a product's three indices (rows, depth, columns) lie along the array's sides and the third
is time. The matrix that has both spatial indices stays in the PEs: weights (`ws`), outputs (`os`) or inputs (`is`).
It serves all three operations of training **in place**, without a transposer: where it is a factor it is loaded and
the sum moves through the array; where it is the sum, as a matrix is in its own gradient's product, both factors move
and it accumulates.

A fold of `stream` steps on R x C PEs takes R + C - 2 + stream cycles, and R more where the stationary matrix is
loaded. These are SCALE-Sim's compute cycles for the forward pass.

To add a dataflow, register a function:

    @DATAFLOWS.register("mine")
    def mine(product: Product, array: Array) -> Cost:
        return Cost(cycles=-(-product.macs // array.pes), macs=product.macs)
"""

from collections.abc import Callable
from functools import lru_cache

from adagp.hw.array import Array
from adagp.hw.product import Cost, Operation, Product
from adagp.registry import Registry

Dataflow = Callable[[Product, Array], Cost]
DATAFLOWS: Registry[Dataflow] = Registry("dataflow")


@lru_cache(maxsize=1 << 16)
def array_cost(dataflow: str, product: Product, array: Array) -> Cost:
    """Return the cost of `product` on `array` under the named dataflow; models repeat shapes, so answers are kept."""
    return DATAFLOWS[dataflow](product, array)


@DATAFLOWS.register("ws")
def weight_stationary(product: Product, array: Array) -> Cost:
    """Depth x columns in space, rows in time: weights stay; they accumulate in the weight gradient."""
    sums = {
        Operation.FORWARD: "across",
        Operation.INPUT_GRADIENT: "down",
        Operation.WEIGHT_GRADIENT: "stationary",
    }
    return systolic(product, array, ("depth", "columns", "rows"), sums[product.operation])


@DATAFLOWS.register("os")
def output_stationary(product: Product, array: Array) -> Cost:
    """Rows x columns in space, depth in time: outputs accumulate; their gradient stays in both backward products."""
    sums = {
        Operation.FORWARD: "stationary",
        Operation.INPUT_GRADIENT: "down",
        Operation.WEIGHT_GRADIENT: "across",
    }
    return systolic(product, array, ("rows", "columns", "depth"), sums[product.operation])


@DATAFLOWS.register("is")
def input_stationary(product: Product, array: Array) -> Cost:
    """Depth x rows in space, columns in time: inputs stay; they accumulate in the input gradient."""
    sums = {
        Operation.FORWARD: "across",
        Operation.INPUT_GRADIENT: "stationary",
        Operation.WEIGHT_GRADIENT: "down",
    }
    return systolic(product, array, ("depth", "rows", "columns"), sums[product.operation])


def systolic(product: Product, array: Array, placement: tuple[str, str, str], sum_is: str) -> Cost:
    """Return the cost of `count` products, folded onto the array.

    `placement` names the indices that lie down and across the array, and the one that is time. The matrix of the first two is
    stationary. `sum_is` tells which matrix is the sum: `stationary`, or the moving one that has the index `down` or
    `across`. A moving factor is read once for each fold along the other side; a moving sum is written back after each fold
    that adds to it and read again before the next. Inserted rows of zeros take cycles, but no accesses.
    """
    down, across, stream = (getattr(product, index) for index in placement)
    spread = (getattr(product, index) + product.inserted_rows * (index == "rows") for index in placement)
    spread_down, spread_across, steps = spread
    load = 0 if sum_is == "stationary" else array.rows
    folds = -(-spread_down // array.rows) * -(-spread_across // array.columns)
    cycles = folds * (load + steps + array.rows + array.columns - 2)

    passes_down = down * stream * -(-across // array.columns)
    passes_across = across * stream * -(-down // array.rows)
    if sum_is == "stationary":
        reads, writes = passes_down + passes_across, down * across
    elif sum_is == "down":
        reads, writes = down * across + passes_across + passes_down - down * stream, passes_down
    else:
        reads, writes = down * across + passes_down + passes_across - across * stream, passes_across
    return Cost(cycles, down * across * stream, reads, writes) * product.count
