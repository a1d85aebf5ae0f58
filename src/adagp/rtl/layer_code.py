"""Code of a network's layers in any dataflow: products, activations, errors, updates, and the means for the predictor.

A convolution is a product for each tap of its kernel, which takes neighbours of the pixels that stream: nothing is copied.
"""

from dataclasses import dataclass, replace

from adagp.rtl.code import Code, Matrix, Neighbours, Operand, Pool, lines, words
from adagp.rtl.formats import Words
from adagp.rtl.instructions import Store
from adagp.rtl.mapping import find_mapping, value_store
from adagp.rtl.network import SmallNetwork

POOLING = ("ws", "os")
"""Dataflows in which the outputs of one channel leave in one lane. Input stationary, they leave in one for each row."""


@dataclass
class LayerRegions:
    """Where a layer's numbers are: inputs, weights of each tap, error at the output; the gradient of its weights, those of an
    output in a line, taps of an input next to each other; its outputs as values, or the totals of those that were pooled as
    they left the array, for the predictor."""

    inputs: Matrix
    weights: list[Matrix]
    error: Matrix
    gradient: Matrix
    output: Matrix | None = None
    pool: Pool | None = None


class LayerCode:
    """Writes the layers' part of a program. x, w and y are a layer's inputs (rows x depth), weights (depth x columns) and
    outputs (rows x columns), and the errors of these."""

    def __init__(self, code: Code, network: SmallNetwork, dataflow: str, *, predicts: bool) -> None:
        self.code, self.network, self.dataflow, self.predicts = code, network, dataflow, predicts
        mapping = find_mapping(dataflow, "forward", 1, 1, 1)
        self._places = {getattr(mapping, place): place for place in ("row", "column", "stationary")}
        self._lines = {name: mapping.layout(place)[0] for name, place in self._places.items()}
        self.layers = [self._regions(*layer) for layer in network.layers]
        self.targets = code.matrix(Store.ROW_VALUES, network.widths[-1], network.rows)

    def _regions(self, inputs: int, outputs: int) -> LayerRegions:
        network, code = self.network, self.code
        sizes = {"rows": network.rows, "depth": inputs, "columns": outputs}
        regions = LayerRegions(
            self._matrix("x", sizes["rows"], sizes["depth"]),
            [self._matrix("w", sizes["depth"], sizes["columns"]) for _ in network.shifts],
            self._matrix("y", sizes["rows"], sizes["columns"]),
            code.matrix(self._beside_weights, outputs, inputs * len(network.shifts)),
        )
        if self.predicts and self.dataflow in POOLING:
            regions.pool = code.pool(outputs, *network.window, network.pooled)
        elif self.predicts:
            regions.output = code.matrix(Store.ROW_VALUES, outputs, network.rows)
        return regions

    def _matrix(self, name: str, first: int, second: int) -> Matrix:
        """Return a region for a matrix of `first` x `second` where the dataflow wants it."""
        extents = (first, second) if self.straight(name) else (second, first)
        return self.code.matrix(value_store(self._places[name]), *extents)

    def straight(self, name: str) -> bool:
        """Tell whether a matrix's lines are its first index."""
        return self._lines[name] == {"x": "rows", "w": "depth", "y": "rows"}[name]

    @property
    def _beside_weights(self) -> Store:
        """The banks where gradients are, so that weights can be read at the same time."""
        return Store.COLUMN_VALUES if self._places["w"] == "row" else Store.ROW_VALUES

    def turned(self, name: str, matrix: Words) -> Words:
        """Return x, w or y, first index first, as it lies in the banks."""
        return matrix if self.straight(name) else matrix.T

    def _walk(self, name: str, matrix: Matrix) -> Operand:
        """Walk x, w or y: loop 0 over its second index, a layer's inputs or outputs; loop 2 over the first."""
        return words(matrix) if self.straight(name) else lines(matrix)

    def forward(self, place: int, phase: str) -> None:
        """Layer `place`, forward: sums, what the predictor needs of them, and the next layer's inputs or the error."""
        network, code, layer = self.network, self.code, self.layers[place]
        inputs, outputs = network.layers[place]
        sizes, count = (network.rows, inputs, outputs), (outputs, 1, network.rows)
        for tap, weights in enumerate(layer.weights):
            pool = layer.pool if tap + 1 == len(layer.weights) else None
            factors, where = {"x": layer.inputs, "w": weights}, self._neighbours(tap)
            sums = code.product(self.dataflow, "forward", sizes, factors, pool, adds=tap > 0, neighbours=where)
        found = self._walk("y", sums)
        if layer.output is not None:
            code.elements(count, lines(layer.output), found)
        if place + 1 < len(self.layers):
            code.elements(count, self._walk("x", self.layers[place + 1].inputs), found, relu=True)
        elif phase == "bp":
            code.elements(count, self._walk("y", layer.error), found, lines(self.targets), factor=-1.0)

    def weight_gradient(self, place: int) -> None:
        """Leave the gradient of a layer's weights as values."""
        inputs, outputs = self.network.layers[place]
        layer, sizes = self.layers[place], (self.network.rows, inputs, outputs)
        for tap in range(len(layer.weights)):
            factors, where = {"x": layer.inputs, "y": layer.error}, self._neighbours(tap)
            sums = self.code.product(self.dataflow, "dw", sizes, factors, neighbours=where)
            result = self._tap(lines(layer.gradient), tap)
            self.code.elements((outputs, 1, inputs), result, self._walk("w", sums))

    def input_gradient(self, place: int) -> None:
        """Leave the error at the output of the layer below; the lowest layer has none."""
        if place == 0:
            return
        inputs, outputs = self.network.layers[place]
        layer, rows = self.layers[place], self.network.rows
        for tap, weights in enumerate(layer.weights):
            factors, where = {"y": layer.error, "w": weights}, self._neighbours(tap, -1)
            sums = self.code.product(
                self.dataflow, "dx", (rows, inputs, outputs), factors, adds=tap > 0, neighbours=where
            )
        below = self._walk("y", self.layers[place - 1].error)
        self.code.elements((inputs, 1, rows), below, self._walk("x", sums), self._walk("x", layer.inputs), gate=True)

    def update(self, place: int, gradient: Operand) -> None:
        """Take a step with a layer's weights."""
        inputs, outputs = self.network.layers[place]
        for tap, matrix in enumerate(self.layers[place].weights):
            weights, of_tap = self._walk("w", matrix), self._tap(gradient, tap)
            self.code.elements((outputs, 1, inputs), weights, weights, of_tap, factor=-self.network.rate)

    def _tap(self, gradient: Operand, tap: int) -> Operand:
        """Walk a gradient's words of one tap only."""
        outer, middle, _ = gradient.strides
        return replace(gradient, address=gradient.address + tap, strides=(outer, middle, len(self.network.shifts)))

    def _neighbours(self, tap: int, sign: int = 1) -> Neighbours | None:
        """Return the pixels that a tap looks at, or with `sign` -1 those that look at a pixel by it."""
        down, across = self.network.shifts[tap]
        return Neighbours(*self.network.picture, sign * down, sign * across) if self.network.kernel > 1 else None

    def mean(self, place: int, result: Operand) -> None:
        """Give the predictor the means of a layer's outputs."""
        network, code, layer = self.network, self.code, self.layers[place]
        outputs, (height, width) = network.layers[place][1], network.window
        if layer.pool is not None:
            cells = network.pooled**2
            start = code.sizes.sum_words + layer.pool.base
            totals = Matrix(Store.COLUMN_SUMS, start, outputs, cells, code.sizes.array.columns)
            code.elements((outputs, 1, cells), result, lines(totals), mean_of=network.batch * height * width)
        elif layer.output is not None:
            seen, batch = lines(layer.output), network.batch
            result = replace(result, strides=(1, 0, 0))  # one for each run of loop 2
            code.elements((outputs, 1, batch), result, None, seen, factor=1.0, running=True, mean_of=batch)
