"""Programs for one batch of a small network, Phase BP or Phase GP, on each of the designs.

The layers' code (any dataflow) and the predictor's code (weight stationary) are written once. In `low` and `efficient` both go
into one program; in `max` they are two, which wait for each other where they exchange data. A convolution is a product for each
tap of its kernel, which takes neighbours of the pixels that stream: nothing is copied.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from adagp.errors import OptionError, unknown_name
from adagp.rtl.assembler import Code, Contents, Matrix, Neighbours, Operand, Pool, lines, words, zeros
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.formats import Words
from adagp.rtl.instructions import REMOTE, Store
from adagp.rtl.mapping import find_mapping, value_store
from adagp.rtl.network import PHASES, TAPS, SmallNetwork, State

POOLING = ("ws", "os")
"""Dataflows in which all outputs of a channel leave in one lane. With `is`, each row of outputs leaves in a lane of its own."""


@dataclass
class LayerRegions:
    """Where a layer's numbers are.

    inputs, weights, error   inputs, weights of each tap, error at the output
    gradient                 gradient of the weights: a line for each output, with the taps of an input next to each other
    output, pool             for the predictor: the outputs as values, or the totals of outputs pooled as they left the array
    """

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
        self._roles = {getattr(mapping, role): role for role in ("row", "column", "stationary")}
        self._lines = {name: mapping.layout(role)[0] for name, role in self._roles.items()}
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
        extents = (first, second) if self.straight(name) else (second, first)
        return self.code.matrix(value_store(self._roles[name]), *extents)

    def straight(self, name: str) -> bool:
        """Return whether a matrix's lines are its first index."""
        return self._lines[name] == {"x": "rows", "w": "depth", "y": "rows"}[name]

    @property
    def _beside_weights(self) -> Store:
        """The banks for gradients: others than the weights' banks, so that both can be read at the same time."""
        return Store.COLUMN_VALUES if self._roles["w"] == "row" else Store.ROW_VALUES

    def turned(self, name: str, matrix: Words) -> Words:
        """Return x, w or y, first index first, in the order of the banks."""
        return matrix if self.straight(name) else matrix.T

    def _walk(self, name: str, matrix: Matrix) -> Operand:
        """Walk x, w or y: loop 0 over its second index, a layer's inputs or outputs; loop 2 over the first."""
        return words(matrix) if self.straight(name) else lines(matrix)

    def forward(self, index: int, phase: str) -> None:
        """Layer `index`, forward: sums, what the predictor needs of them, and the next layer's inputs or the error."""
        network, code, layer = self.network, self.code, self.layers[index]
        inputs, outputs = network.layers[index]
        sizes, count = (network.rows, inputs, outputs), (outputs, 1, network.rows)
        for tap, weights in enumerate(layer.weights):
            pool = layer.pool if tap + 1 == len(layer.weights) else None
            factors, where = {"x": layer.inputs, "w": weights}, self._neighbours(tap)
            sums = code.product(self.dataflow, "forward", sizes, factors, pool, adds=tap > 0, neighbours=where)
        result = self._walk("y", sums)
        if layer.output is not None:
            code.elements(count, lines(layer.output), result)
        if index + 1 < len(self.layers):
            code.elements(count, self._walk("x", self.layers[index + 1].inputs), result, relu=True)
        elif phase == "bp":
            code.elements(count, self._walk("y", layer.error), result, lines(self.targets), factor=-1.0)

    def weight_gradient(self, index: int) -> None:
        """Leave the gradient of a layer's weights as values."""
        inputs, outputs = self.network.layers[index]
        layer, sizes = self.layers[index], (self.network.rows, inputs, outputs)
        for tap in range(len(layer.weights)):
            factors, where = {"x": layer.inputs, "y": layer.error}, self._neighbours(tap)
            sums = self.code.product(self.dataflow, "dw", sizes, factors, neighbours=where)
            result = self._tap(lines(layer.gradient), tap)
            self.code.elements((outputs, 1, inputs), result, self._walk("w", sums))

    def input_gradient(self, index: int) -> None:
        """Leave the error at the output of the layer below; the lowest layer has none."""
        if index == 0:
            return
        inputs, outputs = self.network.layers[index]
        layer, rows = self.layers[index], self.network.rows
        for tap, weights in enumerate(layer.weights):
            factors, where = {"y": layer.error, "w": weights}, self._neighbours(tap, -1)
            sums = self.code.product(
                self.dataflow, "dx", (rows, inputs, outputs), factors, adds=tap > 0, neighbours=where
            )
        below = self._walk("y", self.layers[index - 1].error)
        self.code.elements((inputs, 1, rows), below, self._walk("x", sums), self._walk("x", layer.inputs), gate=True)

    def update(self, index: int, gradient: Operand) -> None:
        """Take a step with a layer's weights."""
        inputs, outputs = self.network.layers[index]
        for tap, matrix in enumerate(self.layers[index].weights):
            weights, of_tap = self._walk("w", matrix), self._tap(gradient, tap)
            self.code.elements((outputs, 1, inputs), weights, weights, of_tap, factor=-self.network.rate)

    def _tap(self, gradient: Operand, tap: int) -> Operand:
        outer, middle, _ = gradient.strides
        return replace(gradient, address=gradient.address + tap, strides=(outer, middle, len(self.network.shifts)))

    def _neighbours(self, tap: int, sign: int = 1) -> Neighbours | None:
        """Return the pixels that a tap reads, or with `sign` -1 those that read a pixel through this tap."""
        down, across = self.network.shifts[tap]
        return Neighbours(*self.network.picture, sign * down, sign * across) if self.network.kernel > 1 else None

    def mean(self, index: int, result: Operand) -> None:
        """Write the means of a layer's outputs for the predictor."""
        network, code, layer = self.network, self.code, self.layers[index]
        outputs, (height, width) = network.layers[index][1], network.window
        if layer.pool is not None:
            cells = network.pooled**2
            start = code.sizes.sum_words + layer.pool.base
            totals = Matrix(Store.COLUMN_SUMS, start, outputs, cells, code.sizes.array.columns)
            code.elements((outputs, 1, cells), result, lines(totals), mean_of=network.batch * height * width)
        elif layer.output is not None:
            seen, batch = lines(layer.output), network.batch
            result = replace(result, strides=(1, 0, 0))  # one for each run of loop 2
            code.elements((outputs, 1, batch), result, None, seen, factor=1.0, running=True, mean_of=batch)


DATAFLOW = "ws"


@dataclass
class PredictorRegions:
    """Where the predictor's numbers for one layer are; kernel and readout are the same for all layers."""

    kernel: Matrix
    readout: Matrix
    mean: Matrix
    patches: Matrix
    features: Matrix
    gradient: Matrix
    error: Matrix
    at_maps: Matrix
    scratch: Matrix


class PredictorCode:
    """Writes the predictor's part of a program. `gradients` are the layers' own gradients if they are in the same core."""

    def __init__(self, code: Code, network: SmallNetwork, gradients: list[Matrix] | None) -> None:
        self.own, self.network = code, network
        self.predictors = self._regions(gradients)

    def _regions(self, gradients: list[Matrix] | None) -> list[PredictorRegions]:
        network, own = self.network, self.own
        shape, row, column = network.predictor, Store.ROW_VALUES, Store.COLUMN_VALUES
        banked = own.sizes.predictor_words > 0
        kernel = own.matrix(column, shape.channels, TAPS, own=banked)
        readout = own.matrix(column, network.widest, shape.features, own=banked)
        scratch = own.matrix(row, max(network.widest, shape.channels), max(shape.features, TAPS))
        return [
            PredictorRegions(
                kernel,
                readout,
                own.matrix(column, 1, outputs * network.pooled**2),
                own.matrix(row, TAPS, outputs * network.cells),
                own.matrix(row, shape.features, outputs),
                own.matrix(row, outputs, inputs) if gradients is None else gradients[index],
                own.matrix(column, inputs, outputs),
                own.matrix(column, shape.channels, outputs * network.cells),
                scratch,
            )
            for index, (inputs, outputs) in enumerate(network.weights)
        ]

    def mean(self, index: int) -> Operand:
        """Walk a layer's means: loop 0 over channels, loop 2 over cells."""
        mean = self.predictors[index].mean
        return Operand(mean.memory, 0, mean.base, (self.network.pooled**2, 0, 1))

    def features(self, index: int) -> None:
        """Patches of the mean, convolution, features. A fully connected layer's picture has one value everywhere."""
        network, own, regions = self.network, self.own, self.predictors[index]
        grid, cells, outputs = network.predictor.grid, network.cells, network.layers[index][1]
        repeated = network.pooled == 1
        for tap in range(TAPS):
            down, across = divmod(tap, 3)
            (top, bottom), (left, right) = _inside(grid, down), _inside(grid, across)
            lane, address = regions.patches.at(tap)
            start = address + top * grid + left
            patches = Operand(Store.ROW_VALUES, lane, start, (cells, grid, 1))
            neighbour = 0 if repeated else (top + down - 1) * grid + left + across - 1
            strides = (1, 0, 0) if repeated else (cells, grid, 1)
            mean = Operand(regions.mean.memory, 0, regions.mean.base + neighbour, strides)
            if bottom > top and right > left:
                own.elements((outputs, bottom - top, right - left), patches, mean)
        maps, channels = outputs * cells, network.predictor.channels
        factors = {"x": regions.patches, "w": regions.kernel}
        sums = own.product(DATAFLOW, "forward", (maps, TAPS, channels), factors)
        for channel in range(channels):
            lane, address = sums.at(channel)
            result = Operand(Store.COLUMN_SUMS, lane, address, (0, 1, cells))
            own.elements((1, cells, outputs), self._channel(index, channel), result, relu=True)

    def _channel(self, index: int, channel: int) -> Operand:
        """Walk a channel's features: loop 1 over cells, loop 2 over rows."""
        features = self.predictors[index].features
        lane, address = features.at(channel * self.network.cells)
        return Operand(features.memory, lane, address, (0, 0, 1), walk=1, wrap=features.extent)

    def _prediction(self, index: int) -> Operand:
        """Run the readout, and walk its sums: loop 0 over rows, loop 2 over a row's gradient."""
        inputs, outputs = self.network.weights[index]
        own, regions = self.own, self.predictors[index]
        sizes = (outputs, self.network.predictor.features, inputs)
        return words(own.product(DATAFLOW, "forward", sizes, {"x": regions.features, "w": regions.readout}))

    def predict(self, index: int) -> None:
        """Leave the predicted gradient as values in the predictor's gradient region."""
        inputs, outputs = self.network.weights[index]
        self.features(index)
        prediction = self._prediction(index)
        self.own.elements((outputs, 1, inputs), lines(self.predictors[index].gradient), prediction)

    def learn(self, index: int) -> None:
        """Take a step with the predictor's weights towards the true gradient, which is in its gradient region."""
        network, own, regions = self.network, self.own, self.predictors[index]
        inputs, outputs = network.weights[index]
        shape, cells = network.predictor, network.cells
        self.features(index)
        prediction = self._prediction(index)
        own.elements((outputs, 1, inputs), words(regions.error), prediction, lines(regions.gradient), factor=-1.0)
        sizes = (outputs, shape.features, inputs)
        at_features = own.product(DATAFLOW, "dx", sizes, {"y": regions.error, "w": regions.readout})
        for channel in range(shape.channels):
            walk = self._channel(index, channel)
            sums = Operand(Store.ROW_SUMS, walk.lane, at_features.at(channel * cells)[1], walk.strides, 1, walk.wrap)
            lane, address = regions.at_maps.at(channel)
            result = Operand(regions.at_maps.memory, lane, address, (0, 1, cells))
            own.elements((1, cells, outputs), result, sums, walk, gate=True)
        self._step(regions.features, regions.error, regions.readout, sizes, regions.scratch)
        maps = (outputs * cells, TAPS, shape.channels)
        self._step(regions.patches, regions.at_maps, regions.kernel, maps, regions.scratch)

    def _step(self, x: Matrix, y: Matrix, weights: Matrix, sizes: tuple[int, int, int], scratch: Matrix) -> None:
        """Take the gradient of a matrix of the predictor's weights, and a step against it."""
        _, down, across = sizes
        own = self.own
        sums = own.product(DATAFLOW, "dw", sizes, {"x": x, "y": y})
        here = lines(Matrix(Store.ROW_VALUES, scratch.base, across, down, scratch.lanes))
        own.elements((across, 1, down), here, lines(sums))
        region = lines(weights)
        own.elements((across, 1, down), region, region, here, factor=-self.network.predictor_rate)


def _inside(grid: int, shift: int) -> tuple[int, int]:
    """Return the cells, from and below, whose neighbour at `shift` - 1 is inside the grid."""
    return max(0, 1 - shift), min(grid, grid + 1 - shift)


@dataclass
class CompiledBatch:
    """Programs, what the host writes before they run, and where it finds the results: weights of each layer by tap; `straight`
    is whether their matrices are inputs x outputs."""

    programs: list[list[int]]
    contents: Contents
    weights: list[list[Matrix]]
    straight: bool
    kernel: Matrix | None
    readout: Matrix | None
    predictor_core: int
    codes: list[Code] = field(default_factory=list)


def _check_options(network: SmallNetwork, phase: str, dataflow: str, predicts: bool) -> None:
    if phase not in PHASES:
        raise unknown_name("phase", phase, PHASES)
    if phase == "gp" and not predicts:
        raise OptionError("the baseline has no predictor, so it has no Phase GP; choose low, efficient or max.")
    if predicts and dataflow not in POOLING and network.picture != (1, 1):
        raise OptionError(
            f"dataflow '{dataflow}' cannot pool images: the outputs of a channel leave the array in several lanes. "
            "Choose ws or os, or an image of 1x1."
        )
    if network.kernel > 1 and dataflow != "ws":
        raise OptionError(
            f"dataflow '{dataflow}' cannot address the neighbours of a pixel, which a kernel of 3x3 needs; "
            "choose ws, or a kernel of 1."
        )


class Compiler:
    """Writes the programs of one batch. The layers run in `dataflow`."""

    def __init__(self, blueprint: Blueprint, network: SmallNetwork, phase: str, dataflow: str = "ws") -> None:
        self.predicts = blueprint.design != "baseline"
        _check_options(network, phase, dataflow, self.predicts)
        self.blueprint, self.network, self.phase = blueprint, network, phase
        self.main = Code(blueprint.core)
        self.own = Code(blueprint.predictor) if blueprint.predictor is not None else self.main
        self.layers = LayerCode(self.main, network, dataflow, predicts=self.predicts)
        shared = [layer.gradient for layer in self.layers.layers] if self.own is self.main else None
        self.predictor = PredictorCode(self.own, network, shared) if self.predicts else None
        self.contents: Contents = []

    def compile(self, state: State) -> CompiledBatch:
        """Return the job for a batch that starts from `state`."""
        self._write(state)
        if self.predictor is None:
            self._backprop()
        elif self.phase == "gp":
            self._phase_gp(self.predictor)
        else:
            self._phase_bp(self.predictor)
        codes = [self.main] if self.own is self.main else [self.main, self.own]
        for code in codes:
            code.halt()
        first = self.predictor.predictors[0] if self.predictor is not None else None
        weights = [layer.weights for layer in self.layers.layers]
        return CompiledBatch(
            [code.program for code in codes],
            self.contents,
            weights,
            self.layers.straight("w"),
            first.kernel if first else None,
            first.readout if first else None,
            self._predictor_core,
            codes,
        )

    @property
    def _predictor_core(self) -> int:
        return 0 if self.own is self.main else 1

    def samples(self, inputs: Words, targets: Words) -> Contents:
        """Return the samples of a batch and their regions: all that the host writes between two batches."""
        return [
            (0, self.layers.layers[0].inputs, self.layers.turned("x", inputs)),
            (0, self.layers.targets, targets.T),
        ]

    def _write(self, state: State) -> None:
        layers, at = self.layers, self._predictor_core
        self.contents = self.samples(state.inputs, state.targets)
        for layer, weight in zip(layers.layers, state.weights, strict=True):
            for tap, matrix in enumerate(layer.weights):
                self.contents.append((0, matrix, layers.turned("w", weight[tap :: len(layer.weights)])))
        if self.predictor is None:
            return
        for regions in self.predictor.predictors:
            self.contents.append((at, regions.patches, zeros(regions.patches)))
        regions = self.predictor.predictors[0]
        if self.blueprint.design == "low":
            text = np.concatenate([state.kernel.T.ravel(), state.readout.T.ravel()])
            off_chip = Matrix(Store.ROW_VALUES, 0, 1, len(text), 1)
            if len(text) > self.main.sizes.off_chip_words:
                raise OptionError(
                    f"the predictor has {len(text)} weights; off-chip memory has {self.main.sizes.off_chip_words} words."
                )
            self.contents.append((1, off_chip, text[None]))
        else:
            self.contents += [(at, regions.kernel, state.kernel.T), (at, regions.readout, state.readout.T)]

    # The phases

    def _phase_gp(self, predictor: PredictorCode) -> None:
        layers, count = self.layers, len(self.layers.layers)
        if self.own is self.main:
            for index in range(count):
                layers.forward(index, self.phase)
                layers.mean(index, predictor.mean(index))
                self._load_predictor()
                predictor.predict(index)
                layers.update(index, lines(layers.layers[index].gradient))
            return
        for index in range(count):
            layers.forward(index, self.phase)
            self._meet()
            if index:
                layers.update(index - 1, lines(predictor.predictors[index - 1].gradient).remote)
            layers.mean(index, predictor.mean(index).remote)
            self._meet()
            predictor.predict(index)
        self._meet()
        layers.update(count - 1, lines(predictor.predictors[-1].gradient).remote)
        self._meet()

    def _phase_bp(self, predictor: PredictorCode) -> None:
        layers = self.layers
        for index in range(len(layers.layers)):
            layers.forward(index, self.phase)
        for index in reversed(range(len(layers.layers))):
            layers.weight_gradient(index)
            gradient = lines(layers.layers[index].gradient)
            if self.own is not self.main:
                self._meet()
                inputs, outputs = self.network.weights[index]
                there = lines(predictor.predictors[index].gradient).remote
                self.main.elements((outputs, 1, inputs), there, gradient)
                layers.mean(index, predictor.mean(index).remote)
                self._meet()
            layers.input_gradient(index)
            layers.update(index, gradient)
            if self.own is self.main:
                layers.mean(index, predictor.mean(index))
                self._load_predictor()
            predictor.learn(index)
            self._store_predictor()

    def _backprop(self) -> None:
        layers = self.layers
        for index in range(len(layers.layers)):
            layers.forward(index, self.phase)
        for index in reversed(range(len(layers.layers))):
            layers.weight_gradient(index)
            layers.input_gradient(index)
            layers.update(index, lines(layers.layers[index].gradient))

    def _meet(self) -> None:
        self.main.meet()
        self.own.meet()

    def _swapped(self) -> list[tuple[tuple[int, int, int], Operand, Operand]]:
        """Return the predictor's matrices on the chip and off it."""
        if self.predictor is None or self.blueprint.design != "low":
            return []
        regions, start, moves = self.predictor.predictors[0], 0, []
        for matrix in (regions.kernel, regions.readout):
            away = Operand(Store.ROW_VALUES + REMOTE, 0, start, (matrix.extent, 0, 1))
            moves.append(((matrix.lines, 1, matrix.extent), lines(matrix), away))
            start += matrix.lines * matrix.extent
        return moves

    def _load_predictor(self) -> None:
        for counts, here, away in self._swapped():
            self.main.elements(counts, here, away)

    def _store_predictor(self) -> None:
        for counts, here, away in self._swapped():
            self.main.elements(counts, away, here)
