"""One systolic array for the three products of training, cycle by cycle, without a transposed copy of any matrix.

Cell (n, c) stands in row n, counted from the bottom, and column c. It holds the weight W[c, n], or a sum. In every cycle it
takes a number from the left and one from below, and passes both on: to the right, and upwards. The product depends on which of
the two are data and which are sums:

    forward          Y = X W        data from below, sums to the right; the weights stay
    input gradient   dX = dY W^T    data from the left, sums upwards; the same weights stay
    weight gradient  dW = X^T dY    data from both sides; the sums stay
"""

from collections.abc import Sequence
from dataclasses import dataclass

Matrix = Sequence[Sequence[float]]


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
        below = _skewed(inputs, self.columns)
        return self._run([], below, len(inputs), "right")

    def input_gradient(self, gradients: Matrix) -> list[list[float]]:
        """Return dY W^T: the gradients move to the right, and the sums leave at the top."""
        left = _skewed(gradients, self.rows)
        return self._run(left, [], len(gradients), "top")

    def weight_gradient(self, inputs: Matrix, gradients: Matrix) -> list[list[float]]:
        """Return X^T dY: gradients from the left and inputs from below meet in the cells, whose sums stay."""
        left, below = _skewed(gradients, self.rows), _skewed(inputs, self.columns)
        return self._run(left, below, len(inputs), "cells")

    def _run(self, left: list[list[float]], below: list[list[float]], samples: int, results: str) -> list[list[float]]:
        """Move numbers through the cells until the last sum is made; an edge without data feeds zeros: new sums."""
        cells = [(row, column) for row in range(self.rows) for column in range(self.columns)]
        rightwards, upwards = dict.fromkeys(cells, 0.0), dict.fromkeys(cells, 0.0)
        stay = dict.fromkeys(cells, 0.0)
        leaving: list[tuple[int, int, float]] = []
        cycles = samples + self.rows + self.columns - 2
        for cycle in range(cycles):
            old_right, old_up = dict(rightwards), dict(upwards)
            for row, column in cells:
                west = old_right[row, column - 1] if column else _entering(left, cycle, row)
                south = old_up[row - 1, column] if row else _entering(below, cycle, column)
                if results == "right":
                    west += south * self.weights[column][row]
                elif results == "top":
                    south += west * self.weights[column][row]
                else:
                    stay[row, column] += west * south
                rightwards[row, column], upwards[row, column] = west, south
            if results == "right":
                last = self.columns - 1
                leaving += [(cycle - row - last, row, rightwards[row, last]) for row in range(self.rows)]
            elif results == "top":
                last = self.rows - 1
                leaving += [(cycle - last - column, column, upwards[last, column]) for column in range(self.columns)]
        self.cycles += cycles
        if results == "cells":
            return [[stay[row, column] for row in range(self.rows)] for column in range(self.columns)]
        width = self.rows if results == "right" else self.columns
        product = [[0.0] * width for _ in range(samples)]
        for sample, line, value in leaving:
            if 0 <= sample < samples:
                product[sample][line] = value
        return product


def _skewed(matrix: Matrix, lines: int) -> list[list[float]]:
    """Return what enters at each line of an edge, cycle by cycle: line i begins i cycles after the first."""
    return [[0.0] * line + [row[line] for row in matrix] for line in range(lines)]


def _entering(edge: list[list[float]], cycle: int, line: int) -> float:
    return edge[line][cycle] if edge and cycle < len(edge[line]) else 0.0
