"""Arrays simulated PE by PE and cycle by cycle, moving real numbers: the slow truth behind the dataflow formulas.

Each function returns the product and the cycles it took. The cycles are counted, not computed: a fold ends when the
last wave has passed the last PE.
"""

from dataclasses import dataclass
from itertools import product as pairs

import numpy as np
from numpy.typing import NDArray

from adagp.hw.dataflows import Array
from adagp.hw.product import Operation, Window
from adagp.hw.row_stationary import layout

Matrix = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """Where a dataflow puts the matrices: one stays as (down x across), the others pass by as (time x down), (time x across).

    `turned` are those whose forward layout is the other way round; feeding a matrix by columns instead of rows is no
    transposing.
    """

    stationary: str
    down: str
    across: str
    turned: tuple[str, ...] = ()


PLACEMENTS = {
    "ws": Placement("weights", "inputs", "outputs"),
    "os": Placement("outputs", "inputs", "weights", turned=("inputs",)),
    "is": Placement("inputs", "weights", "outputs", turned=("inputs", "weights", "outputs")),
}
FACTORS = {
    Operation.FORWARD: ("inputs", "weights", "outputs"),
    Operation.INPUT_GRADIENT: ("outputs", "weights", "inputs"),
    Operation.WEIGHT_GRADIENT: ("inputs", "outputs", "weights"),
}
"""The two factors and the result of each operation, where a gradient goes by the name of its matrix."""


def systolic_product(
    dataflow: str, operation: Operation, left: Matrix, right: Matrix, array: Array
) -> tuple[Matrix, int]:
    """Run one of training's products on a systolic array.

    `left` and `right` are (X, W) for the forward pass, (dY, W) for the input gradient dY W^T, (X, dY) for the weight
    gradient X^T dY, each in its forward layout.
    """
    placement = PLACEMENTS[dataflow]
    first, second, result_name = FACTORS[operation]
    turn = {name: name in placement.turned for name in FACTORS[operation]}
    known = {first: left.T if turn[first] else left, second: right.T if turn[second] else right}
    if result_name == placement.stationary:
        result, cycles = _fold_accumulating(known[placement.down], known[placement.across], array)
    elif result_name == placement.across:
        result, cycles = _fold_staying(known[placement.stationary], known[placement.down], array, sum_down=True)
    else:
        result, cycles = _fold_staying(known[placement.stationary], known[placement.across], array, sum_down=False)
    return (result.T if turn[result_name] else result), cycles


def _fold_accumulating(down: Matrix, across: Matrix, array: Array) -> tuple[Matrix, int]:
    """Run the folds of a product whose result stays, one after the other."""
    result = np.zeros((down.shape[1], across.shape[1]), dtype=np.int64)
    cycles = 0
    for rows, columns in array_tiles(result, array):
        tile, spent = _accumulate(down[:, rows], across[:, columns], array)
        result[rows, columns] = tile[: result[rows, columns].shape[0], : result[rows, columns].shape[1]]
        cycles += spent
    return result, cycles


def _fold_staying(kept: Matrix, moving: Matrix, array: Array, sum_down: bool) -> tuple[Matrix, int]:
    """Run the folds of a product with a stationary factor; sums go down the columns, or along the rows."""
    result = np.zeros((moving.shape[0], kept.shape[1] if sum_down else kept.shape[0]), dtype=np.int64)
    cycles = 0
    for rows, columns in array_tiles(kept, array):
        tile, loading = load_tile(kept[rows, columns], array)
        if sum_down:
            part, streaming = _stream(tile, moving[:, rows])
            target = result[:, columns]
        else:  # the mirror image: values enter at the other edge, the tile stays as it is
            part, streaming = _stream(tile.T, moving[:, columns])
            target = result[:, rows]
        target += part[:, : target.shape[1]]
        cycles += loading + streaming
    return result, cycles


def array_tiles(matrix: Matrix, array: Array) -> list[tuple[slice, slice]]:
    tops, starts = range(0, matrix.shape[0], array.rows), range(0, matrix.shape[1], array.columns)
    return [(slice(top, top + array.rows), slice(left, left + array.columns)) for top, left in pairs(tops, starts)]


def _padded(matrix: Matrix, rows: int, columns: int) -> Matrix:
    full = np.zeros((rows, columns), dtype=np.int64)
    full[: matrix.shape[0], : matrix.shape[1]] = matrix
    return full


def load_tile(tile: Matrix, array: Array) -> tuple[Matrix, int]:
    """Shift `tile` in from the top, a row a cycle."""
    tile = _padded(tile, array.rows, array.columns)
    kept = np.zeros_like(tile)
    cycles = 0
    for row in reversed(range(array.rows)):
        kept[1:] = kept[:-1].copy()
        kept[0] = tile[row]
        cycles += 1
    return kept, cycles


def _stream(kept: Matrix, moving: Matrix) -> tuple[Matrix, int]:
    """Let values in at the left, row i a cycle after row i-1; sums move down and leave below."""
    (rows, columns), steps = kept.shape, moving.shape[0]
    moving = _padded(moving, steps, rows)
    values: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    sums = np.zeros((rows, columns), dtype=np.int64)
    result = np.zeros((steps, columns), dtype=np.int64)
    left = [0] * columns
    clock = 0
    while left[-1] < steps:
        for row, column in pairs(reversed(range(rows)), reversed(range(columns))):
            step = clock - row
            entering = int(moving[step, row]) if 0 <= step < steps else None
            value = values[row][column - 1] if column else entering
            values[row][column] = value
            if value is None:
                continue
            sums[row, column] = value * kept[row, column] + (sums[row - 1, column] if row else 0)
            if row == rows - 1:
                result[left[column], column] = sums[row, column]
                left[column] += 1
        clock += 1
    return result, clock


def _accumulate(first: Matrix, second: Matrix, array: Array) -> tuple[Matrix, int]:
    """Values of `first` enter at the left, of `second` at the top, both skewed; each PE adds up their products."""
    rows, columns, steps = array.rows, array.columns, first.shape[0]
    first, second = _padded(first, steps, rows), _padded(second, steps, columns)
    across: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    down: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    sums = np.zeros((rows, columns), dtype=np.int64)
    done = clock = 0
    while done < steps:
        for row, column in pairs(reversed(range(rows)), reversed(range(columns))):
            step_row, step_column = clock - row, clock - column
            from_left = int(first[step_row, row]) if 0 <= step_row < steps else None
            from_top = int(second[step_column, column]) if 0 <= step_column < steps else None
            across[row][column] = across[row][column - 1] if column else from_left
            down[row][column] = down[row - 1][column] if row else from_top
            one, other = across[row][column], down[row][column]
            if one is not None and other is not None:
                sums[row, column] += one * other
                done += row == rows - 1 and column == columns - 1
        clock += 1
    return sums, clock


def row_stationary_convolution(
    inputs: Matrix, weights: Matrix, array: Array, stride: int = 1, groups: int = 1
) -> tuple[Matrix, int]:
    """Convolve (images, channels, height, width) with (filters, channels / groups, height, width), without padding.

    Each pass puts as many pieces (a strip of output rows and a fold of filter rows of one 2-D convolution) on the
    array as fit.
    """
    images, _, height, width = inputs.shape
    filters, depth, kernel_height, kernel_width = weights.shape
    out_height, out_width = (height - kernel_height) // stride + 1, (width - kernel_width) // stride + 1
    window = Window(images, (kernel_height, kernel_width), (out_height, out_width), (stride, stride))
    strip, strips, fold, folds = layout(window, array)
    outputs = np.zeros((images, filters, out_height, out_width), dtype=np.int64)
    pieces = list(pairs(range(images), range(filters), range(depth), range(strips), range(folds)))
    at_once = (array.rows // fold) * (array.columns // strip)
    cycles = 0
    for start in range(0, len(pieces), at_once):
        longest = 0
        for image, filter_, channel, strip_, fold_ in pieces[start : start + at_once]:
            source = filter_ // (filters // groups) * depth + channel
            filter_rows = range(fold_ * fold, min((fold_ + 1) * fold, kernel_height))
            output_rows = range(strip_ * strip, min((strip_ + 1) * strip, out_height))
            for row in output_rows:
                sums, spent = _column_of_primitives(
                    [inputs[image, source, row * stride + tap] for tap in filter_rows],
                    [weights[filter_, channel, tap] for tap in filter_rows],
                    fold,
                    stride,
                )
                outputs[image, filter_, row] += sums
                longest = max(longest, spent)
        cycles += longest
    return outputs, cycles


def _column_of_primitives(rows: list[Matrix], filters: list[Matrix], height: int, stride: int) -> tuple[Matrix, int]:
    """Run a column of `height` PEs, each with one filter row and one input row; sums climb from PE to PE as they are made."""
    taps = len(filters[0])
    width = (len(rows[0]) - taps) // stride + 1
    finished: list[list[int]] = [[] for _ in range(height)]
    running = [0] * height
    clock = 0
    while len(finished[-1]) < width:
        for place in range(height):
            step = clock - place  # a PE starts a cycle after the one below it
            if not 0 <= step < width * taps:
                continue
            output, tap = divmod(step, taps)
            if place < len(filters):
                running[place] += int(rows[place][output * stride + tap]) * int(filters[place][tap])
            if tap == taps - 1:
                finished[place].append(running[place] + (finished[place - 1][output] if place else 0))
                running[place] = 0
        clock += 1
    return np.array(finished[-1], dtype=np.int64), clock
