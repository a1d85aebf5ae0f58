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
    sum_is = {
        Operation.FORWARD: "across",
        Operation.INPUT_GRADIENT: "down",
        Operation.WEIGHT_GRADIENT: "stationary",
    }
    return systolic(product, array, product.depth, product.columns, product.rows, sum_is[product.operation])


@DATAFLOWS.register("os")
def output_stationary(product: Product, array: Array) -> Cost:
    """Rows x columns in space, depth in time: outputs accumulate; their gradient stays in both backward products."""
    sum_is = {
        Operation.FORWARD: "stationary",
        Operation.INPUT_GRADIENT: "down",
        Operation.WEIGHT_GRADIENT: "across",
    }
    return systolic(product, array, product.rows, product.columns, product.depth, sum_is[product.operation])


@DATAFLOWS.register("is")
def input_stationary(product: Product, array: Array) -> Cost:
    """Depth x rows in space, columns in time: inputs stay; they accumulate in the input gradient."""
    sum_is = {
        Operation.FORWARD: "across",
        Operation.INPUT_GRADIENT: "stationary",
        Operation.WEIGHT_GRADIENT: "down",
    }
    return systolic(product, array, product.depth, product.rows, product.columns, sum_is[product.operation])


def systolic(product: Product, array: Array, down: int, across: int, stream: int, sum_is: str) -> Cost:
    """Return the cost of `count` products whose stationary matrix is (down x across), folded onto the array.

    The other two matrices are (down x stream) and (across x stream). `sum_is` tells which of the three is the sum:
    `stationary`, `down` or `across`. A moving factor is read once for each fold along the other side; a moving sum is
    written back after each fold that adds to it and read again before the next.
    """
    folds_down, folds_across = -(-down // array.rows), -(-across // array.columns)
    load = 0 if sum_is == "stationary" else array.rows
    cycles = folds_down * folds_across * (load + stream + array.rows + array.columns - 2)
    passes_down, passes_across = down * stream * folds_across, across * stream * folds_down
    if sum_is == "stationary":
        reads, writes = passes_down + passes_across, down * across
    elif sum_is == "down":
        reads, writes = down * across + passes_across + passes_down - down * stream, passes_down
    else:
        reads, writes = down * across + passes_down + passes_across - across * stream, passes_across
    return Cost(cycles, down * across * stream, reads, writes) * product.count
