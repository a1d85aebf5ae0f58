"""Dataflows: short registered functions from a product on an array to its cycles and buffer accesses.

On a systolic array two of a product's three indices (rows, depth, columns) lie along the array's sides and the third
is time. The matrix that has both spatial indices stays in the PEs: weights (`ws`), outputs (`os`) or inputs (`is`).
It serves all three operations of training **in place**, without a transposer: where it is a factor it is loaded and
the sum moves through the array; where it is the sum, as a matrix is in its own gradient's product, both factors move
and it accumulates.

A fold of `stream` steps on R x C PEs takes R + C - 2 + stream cycles, and R more where the stationary matrix is
loaded. These are SCALE-Sim's compute cycles for the forward pass.

A gradient may also run as an **ordinary** product (`Product.ordinary`), as on an array with a single dataflow: dX is
then a product of (rows x columns) by (columns x depth), dW one of (depth x rows) by (rows x columns), each placed as any
forward product is.

A product that is cut into tiles (`Product.tile`) runs fold by fold within each: a cut through time costs each fold's filling
and loading once more. A stationary sum is then loaded, too: each tile adds to what the previous one has written back.

To add a dataflow, register a function:

    @DATAFLOWS.register("ideal")
    def ideal(product: Product, array: Array) -> Cost:
        return Cost(cycles=-(-product.macs // array.pes), macs=product.macs)
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from adagp.core.registry import Registry
from adagp.errors import OptionError
from adagp.hw.product import AXES, FREE_ACCESSES, RESULTS, AccessEnergies, Cost, Operation, Product

LONGEST_SIDE = 65_536
"""PEs of a side at most: the largest wafer-scale array has fewer than a thousand."""
MOST_PES = 1_000_000
"""PEs of an array at most."""


@dataclass(frozen=True)
class Array:
    """A grid of processing elements, each with one multiply-accumulate per cycle."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise OptionError(f"array {self} is not allowed: rows and columns must be at least 1, for example 12x15.")
        if max(self.rows, self.columns) > LONGEST_SIDE:
            raise OptionError(f"array {self} is not allowed: rows and columns must be at most {LONGEST_SIDE:,}.")

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def pes(self) -> int:
        """Processing elements."""
        return self.rows * self.columns


def parse_array(text: str) -> Array:
    """Return the array that `text` (`12x15`) describes."""
    match = re.fullmatch(r"(-?\d+)x(-?\d+)", text.strip())
    if match is None:
        raise OptionError(f"cannot read the array '{text}'; write ROWSxCOLUMNS, for example 12x15.")
    return Array(int(match[1]), int(match[2]))


def check_size(text: str) -> None:
    """Raise for a text that names an array of too many PEs: all shapes of an array's size are tried."""
    for rows, columns in re.findall(r"(\d+)x(\d+)", text):
        if len(rows) + len(columns) > 14 or int(rows) * int(columns) > MOST_PES:
            raise OptionError(f"array {rows}x{columns} is not allowed: it has more than {MOST_PES:,} PEs.")


def shaped_like(array: Array, factor: float) -> list[Array]:
    """Return the arrays with at most `factor` times the PEs (rounded) and a shape within a factor of two of the given one's.

    For each number of rows there are as many columns as the given PEs allow, and as the larger number allows.
    """
    shape = array.rows / array.columns
    budgets = (array.pes, round(array.pes * factor))
    choices = {array: None}
    for rows in range(1, budgets[-1] + 1):
        for budget in budgets:
            for columns in range(array.pes // rows, budget // rows + 1):
                if columns and 0.5 <= rows / columns / shape <= 2:
                    choices[Array(rows, columns)] = None
    return list(choices)


OBJECTIVES = ("balanced", "latency", "energy", "edp")
"""What a tiling is chosen for. `latency`: the fewest cycles, of equals the least off-chip traffic. `balanced`: the least
traffic of those that take at most 2 % more cycles than the quickest. `energy`: the fewest joules, `edp`: the least product of
joules and cycles."""
TIMED = OBJECTIVES[:2]
"""Objectives that need no energies."""


@dataclass(frozen=True)
class Memory:
    """The limits and the objective of a tiling.

    Limits are the bits of the global buffer and of accumulators next to it (0: sums are in the buffer), and off-chip bits per
    cycle. The objective is one of `OBJECTIVES`, with the energies that it needs.
    """

    buffer_bits: float
    accumulator_bits: float = 0
    bits_per_cycle: float = inf
    objective: str = OBJECTIVES[0]
    energies: AccessEnergies = FREE_ACCESSES


Dataflow = Callable[[Product, Array], Cost]
DATAFLOWS: Registry[Dataflow] = Registry("dataflow")


@lru_cache(maxsize=1 << 16)
def array_cost(dataflow: str, product: Product, array: Array) -> Cost:
    """Return the cost of `product` on `array` under the named dataflow; cached, because models repeat shapes."""
    return DATAFLOWS[dataflow](product, array)


@dataclass(frozen=True)
class Placement:
    """The indices that lie down and across the array, and the one that is time.

    The matrix of the first two stays in the PEs. `sum_is` is the matrix that is the sum: `stationary`, or the moving one that
    has the index `down` or `across`.
    """

    down: str
    across: str
    time: str
    sum_is: str

    def overhead(self, array: Array, parts: int) -> int:
        """Return the cycles of a fold in addition to its steps, which are cut into `parts`.

        Each part fills and empties the array, and loads the stationary matrix; a sum is 0 before its first part.
        """
        loads = parts - 1 if self.sum_is == "stationary" else parts
        return loads * array.rows + parts * (array.rows + array.columns - 2)


SYSTOLIC = {"ws": ("depth", "columns", "rows"), "os": ("rows", "columns", "depth"), "is": ("depth", "rows", "columns")}
"""Down, across and time of a forward product; the name has the matrix that stays: weights, outputs or inputs."""

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
    cycles = folds_down * folds_across * (steps + placement.overhead(array, parts))

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
