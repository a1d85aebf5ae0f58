"""One systolic array for the three products of training, cycle by cycle, without a transposed copy of any matrix.

Cell (n, c) stands in row n, counted from the bottom, and column c. It holds the weight W[c, n], or a sum. In every cycle it
takes a number from the left and one from below, and passes both on: to the right, and upwards. The product depends on which of
the two are data and which are sums:

    forward          Y = X W        data from below, sums to the right; the weights stay
    input gradient   dX = dY W^T    data from the left, sums upwards; the same weights stay
    weight gradient  dW = X^T dY    data from both sides; the sums stay

Below it are the backward formulas of softmax, normalisation and attention as arithmetic, with the operations that they take.
The accelerator model counts these layers by the words that they move; the counts here are of operations. All functions take
float64 arrays; softmax and normalisation are over the last axis.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = Sequence[Sequence[float]]
CellOperation = Callable[[int, int, float, float], tuple[float, float]]
"""Takes a cell's row and column and the numbers from the left and from below; returns those to the right and upwards."""


@dataclass
class SystolicArray:
    """Cells with stationary weights, a matrix of `columns` lines and `rows` columns. `cycles` counts what its products took."""

    weights: Matrix
    cycles: int = 0

    @property
    def columns(self) -> int:
        """Cells side by side: the inputs of the layer."""
        return len(self.weights)

    @property
    def rows(self) -> int:
        """Cells on top of each other: the outputs of the layer."""
        return len(self.weights[0])

    def forward(self, inputs: Matrix) -> list[list[float]]:
        """Return X W: the inputs rise, and the sums leave on the right."""

        def add_product(row: int, column: int, west: float, south: float) -> tuple[float, float]:
            return west + south * self.weights[column][row], south

        passed, last = self._run([], _skewed(inputs, self.columns), len(inputs), add_product), self.columns - 1
        return [
            [passed[sample + row + last][row, last][0] for row in range(self.rows)] for sample in range(len(inputs))
        ]

    def input_gradient(self, gradients: Matrix) -> list[list[float]]:
        """Return dY W^T: the gradients move to the right, and the sums leave at the top."""

        def add_product(row: int, column: int, west: float, south: float) -> tuple[float, float]:
            return west, south + west * self.weights[column][row]

        passed, last = self._run(_skewed(gradients, self.rows), [], len(gradients), add_product), self.rows - 1
        return [
            [passed[sample + last + column][last, column][1] for column in range(self.columns)]
            for sample in range(len(gradients))
        ]

    def weight_gradient(self, inputs: Matrix, gradients: Matrix) -> list[list[float]]:
        """Return X^T dY: gradients from the left and inputs from below meet in the cells, whose sums stay."""
        sums = [[0.0] * self.rows for _ in range(self.columns)]

        def add_product(row: int, column: int, west: float, south: float) -> tuple[float, float]:
            sums[column][row] += west * south
            return west, south

        self._run(_skewed(gradients, self.rows), _skewed(inputs, self.columns), len(inputs), add_product)
        return sums

    def _run(
        self, left: list[list[float]], below: list[list[float]], samples: int, operation: CellOperation
    ) -> list[dict[tuple[int, int], tuple[float, float]]]:
        """Move numbers through the cells until the last sum is made; an edge without data feeds zeros: new sums.

        Return for every cycle what each cell passes on: to the right, and upwards.
        """
        cells = list(itertools.product(range(self.rows), range(self.columns)))
        previous = dict.fromkeys(cells, (0.0, 0.0))
        passed = []
        for cycle in range(samples + self.rows + self.columns - 2):
            current = {}
            for row, column in cells:
                west = previous[row, column - 1][0] if column else _entering(left, cycle, row)
                south = previous[row - 1, column][1] if row else _entering(below, cycle, column)
                current[row, column] = operation(row, column, west, south)
            passed.append(current)
            previous = current
        self.cycles += len(passed)
        return passed


def _skewed(matrix: Matrix, lines: int) -> list[list[float]]:
    """Return what enters at each line of an edge, cycle by cycle: line i begins i cycles after the first."""
    return [[0.0] * line + [row[line] for row in matrix] for line in range(lines)]


def _entering(edge: list[list[float]], cycle: int, line: int) -> float:
    return edge[line][cycle] if edge and cycle < len(edge[line]) else 0.0


Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    """Return exp(z) / sum exp(z)."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def softmax_jacobian(shares: Array) -> Array:
    """Return diag(s) - s s^T of one row, as Lecture 11 prints it."""
    result: Array = np.diag(shares) - np.outer(shares, shares)
    return result


def softmax_backward(shares: Array, gradient: Array) -> Array:
    """Return the gradient at the scores, without the matrix: s (g - sum(s g))."""
    result: Array = shares * (gradient - (shares * gradient).sum(-1, keepdims=True))
    return result


def normalised(inputs: Array) -> tuple[Array, Array]:
    """Return (z - mean) / deviation and the deviation, over the last axis."""
    centred = inputs - inputs.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True))
    return centred / deviation, deviation


def normalisation_backward(inputs: Array, scale: float, gradient: Array) -> tuple[Array, float, float]:
    """Return the gradients at the inputs, at the scale and at the shift of s = scale * normalised(z) + shift."""
    unit, deviation = normalised(inputs)
    inner = scale * gradient
    at_inputs = (inner - inner.mean(-1, keepdims=True) - unit * (inner * unit).mean(-1, keepdims=True)) / deviation
    return at_inputs, float((gradient * unit).sum()), float(gradient.sum())


def attention_backward(queries: Array, keys: Array, values: Array, gradient: Array) -> tuple[Array, Array, Array]:
    """Return the gradients at queries, keys and values of softmax(Q K^T / sqrt(d)) V: six products and softmax's formula."""
    root = np.sqrt(queries.shape[-1])
    shares = softmax(queries @ keys.T / root)
    at_scores = softmax_backward(shares, gradient @ values.T) / root
    return at_scores @ keys, at_scores.T @ queries, shares.T @ gradient


@dataclass(frozen=True)
class Operations:
    """Additions, multiplications and others (exponentials, divisions, roots) for each number of a layer's output."""

    forward: float
    backward: float


def operations(length: int) -> dict[str, Operations]:
    """Return the operations per number, over rows of `length` numbers; what is computed once per row is divided among them."""
    once = 1 / length
    return {
        # exp, sum, division; then s*g, its sum, g - sum, s*(...)
        "softmax": Operations(forward=3.0, backward=4.0),
        "softmax by its matrix": Operations(forward=3.0, backward=2.0 * length),
        # mean, centring, square, sum, division, scale and shift; then the two means and four products and differences
        "normalisation": Operations(forward=7.0 + 2 * once, backward=10.0 + 2 * once),
    }
