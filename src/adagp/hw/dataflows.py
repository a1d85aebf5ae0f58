"""Dataflows: short registered functions from a product on an array to its cycles and buffer accesses.

On a systolic array two of a product's three indices (rows, depth, columns) lie along the array's sides and the third
is time. The matrix that has both spatial indices stays in the PEs: weights (`ws`), outputs (`os`) or inputs (`is`).
It serves all three operations of training **in place**, without a transposer: where it is a factor it is loaded and
the sum moves through the array; where it is the sum, as a matrix is in its own gradient's product, both factors move
and it accumulates.

A fold of `stream` steps on R x C PEs takes R + C - 2 + stream cycles, and R more where the stationary matrix is
loaded. These are SCALE-Sim's compute cycles for the forward pass.

A gradient may also run as an **ordinary** product (`Product.ordinary`), as on an array that knows one dataflow only: dX is
then a product of (rows x columns) by (columns x depth), dW one of (depth x rows) by (rows x columns), each placed as any
forward product is.

A product that is cut into tiles (`Product.tile`) runs fold by fold within each: a cut through time costs each fold's filling
and loading once more.

To add a dataflow, register a function:

    @DATAFLOWS.register("mine")
    def mine(product: Product, array: Array) -> Cost:
        return Cost(cycles=-(-product.macs // array.pes), macs=product.macs)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from adagp.core.registry import Registry
from adagp.hw.array import Array
from adagp.hw.product import AXES, RESULTS, Cost, Operation, Product

Dataflow = Callable[[Product, Array], Cost]
DATAFLOWS: Registry[Dataflow] = Registry("dataflow")


@lru_cache(maxsize=1 << 16)
def array_cost(dataflow: str, product: Product, array: Array) -> Cost:
    """Return the cost of `product` on `array` under the named dataflow; models repeat shapes, so answers are kept."""
    return DATAFLOWS[dataflow](product, array)


@dataclass(frozen=True)
class Placement:
    """The indices that lie down and across the array, and the one that is time.

    The matrix of the first two stays in the PEs. `sum_is` tells which matrix is the sum: `stationary`, or the moving one that
    has the index `down` or `across`.
    """

    down: str
    across: str
    time: str
    sum_is: str

    def overhead(self, array: Array) -> int:
        """Return the cycles of a fold besides its steps: loading a stationary factor, filling and emptying the array."""
        load = 0 if self.sum_is == "stationary" else array.rows
        return load + array.rows + array.columns - 2


SYSTOLIC = {
    "ws": ("depth", "columns", "rows"),
    "os": ("rows", "columns", "depth"),
    "is": ("depth", "rows", "columns"),
}
"""Down, across and time of a forward product; the name says which matrix stays: weights, outputs or inputs."""

_ORDINARY = {
    Operation.INPUT_GRADIENT: {"rows": "rows", "depth": "columns", "columns": "depth"},
    Operation.WEIGHT_GRADIENT: {"rows": "depth", "depth": "rows", "columns": "columns"},
}
"""Which index of the layer takes the place of a forward product's, where a gradient runs as one."""


def placement_of(dataflow: str, product: Product) -> Placement | None:
    """Return where a systolic dataflow puts a product; None for other dataflows."""
    if dataflow not in SYSTOLIC:
        return None
    indices = SYSTOLIC[dataflow]
    if product.ordinary and product.operation in _ORDINARY:
        indices = tuple(_ORDINARY[product.operation][index] for index in indices)  # type: ignore[assignment]
    down, across, time = indices
    result = AXES[RESULTS[product.operation]]
    sum_is = "stationary" if time not in result else "down" if down in result else "across"
    return Placement(down, across, time, sum_is)


@DATAFLOWS.register("ws")
def weight_stationary(product: Product, array: Array) -> Cost:
    """Depth x columns in space, rows in time: weights stay; they accumulate in the weight gradient."""
    return _placed("ws", product, array)


@DATAFLOWS.register("os")
def output_stationary(product: Product, array: Array) -> Cost:
    """Rows x columns in space, depth in time: outputs accumulate; their gradient stays in both backward products."""
    return _placed("os", product, array)


@DATAFLOWS.register("is")
def input_stationary(product: Product, array: Array) -> Cost:
    """Depth x rows in space, columns in time: inputs stay; they accumulate in the input gradient."""
    return _placed("is", product, array)


def _placed(dataflow: str, product: Product, array: Array) -> Cost:
    placement = placement_of(dataflow, product)
    assert placement is not None
    return systolic(product, array, placement)


def systolic(product: Product, array: Array, placement: Placement) -> Cost:
    """Return the cost of `count` products, folded onto the array.

    A moving factor is read once for each fold along the other side; a stationary one once for each cut through time. A moving
    sum is written back after each fold that adds to it and read again before the next, a stationary one after each cut
    through time; it has the width of sums until it is whole. Inserted rows of zeros take cycles, but no accesses.
    """
    down, across, stream = (getattr(product, index) for index in (placement.down, placement.across, placement.time))
    folds_down, folds_across, steps, parts = fold_counts(product, array, placement)
    cycles = folds_down * folds_across * (steps + parts * placement.overhead(array))

    stays, falls, passes = matrices(placement)
    bits = {name: getattr(product.bits, name) for name in AXES}
    moved = {stays: down * across * parts, falls: down * stream * folds_across, passes: across * stream * folds_down}
    once = {stays: down * across, falls: down * stream, passes: across * stream}
    result = RESULTS[product.operation]
    again = (moved[result] - once[result]) * product.bits.sums
    reads = sum(moved[name] * bits[name] for name in AXES if name != result) + again
    macs = down * across * stream
    # Each step reads the stationary factor, or reads and writes the stationary sum; what moves goes one PE on.
    in_registers = 2 * product.bits.sums if result == stays else bits[stays]
    passed_on = sum(product.bits.sums if name == result else bits[name] for name in (falls, passes))
    return (
        Cost(
            cycles,
            macs,
            reads,
            again + once[result] * bits[result],
            registers=macs * in_registers,
            network=macs * passed_on,
        )
        * product.count
    )


def fold_counts(product: Product, array: Array, placement: Placement) -> tuple[int, int, int, int]:
    """Return the folds of a product down and across the array, the steps of each, and the parts that these are cut into."""
    sizes = {"rows": product.rows + product.inserted_rows, "depth": product.depth, "columns": product.columns}
    tile = dict(zip(sizes, product.tile, strict=True)) if product.tile is not None else sizes
    steps = sizes[placement.time]
    return (
        folds(sizes[placement.down], tile[placement.down], array.rows),
        folds(sizes[placement.across], tile[placement.across], array.columns),
        steps,
        -(-steps // tile[placement.time]),
    )


def folds(size: int, tile: int, side: int) -> int:
    """Return how often `size` fills a side of the array, tile by tile."""
    whole, rest = divmod(size, tile)
    return whole * -(-tile // side) + -(-rest // side)


def matrices(placement: Placement) -> tuple[str, str, str]:
    """Return the matrix that stays, the moving one that has the index `down`, and the one that has `across`."""

    def having(*indices: str) -> str:
        return next(name for name, axes in AXES.items() if set(axes) == set(indices))

    down, across, time = placement.down, placement.across, placement.time
    return having(down, across), having(down, time), having(across, time)
