"""Programs for one batch of a small network, Phase BP or Phase GP, on each of the designs; weight stationary.

The layers' code and the predictor's code are written once. In `low` and `efficient` both go into one program; in `max` they are
two, which meet where they exchange something.
"""

from dataclasses import dataclass, field

import numpy as np

from adagp.errors import OptionError, unknown_name
from adagp.rtl.chip import Blueprint
from adagp.rtl.code import Code, Contents, Matrix, Operand, lines, words, zeros
from adagp.rtl.golden import PHASES
from adagp.rtl.instructions import REMOTE, Mode, Store
from adagp.rtl.network import TAPS, SmallNetwork, State


@dataclass
class LayerRegions:
    """Where a layer's numbers are: inputs, weights, error at the output; outputs and gradient as values, for the predictor."""

    inputs: Matrix
    weights: Matrix
    error: Matrix
    output: Matrix
    gradient: Matrix


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


@dataclass
class CompiledBatch:
    """Programs, what the host writes before they run, and where it finds the results."""

    programs: list[list[int]]
    contents: Contents
    weights: list[Matrix]
    kernel: Matrix | None
    readout: Matrix | None
    predictor_core: int
    codes: list[Code] = field(default_factory=list)


class Compiler:
    """Writes the programs of one batch."""

    def __init__(self, blueprint: Blueprint, network: SmallNetwork, phase: str) -> None:
        if phase not in PHASES:
            raise unknown_name("phase", phase, PHASES)
        if phase == "gp" and blueprint.design == "baseline":
            raise OptionError("the baseline has no predictor, so it has no Phase GP; choose low, efficient or max.")
        self.blueprint, self.network, self.phase = blueprint, network, phase
        self.main = Code(blueprint.core)
        self.own = Code(blueprint.predictor) if blueprint.predictor is not None else self.main
        self.sums = self.main.matrix(Store.COLUMN_SUMS, 1, 1), self.main.matrix(Store.ROW_SUMS, 1, 1)
        self.predicts = blueprint.design != "baseline"
        self.layers = [self._layer(inputs, outputs) for inputs, outputs in network.layers]
        self.targets = self.main.matrix(Store.ROW_VALUES, network.widths[-1], network.batch)
        self.predictors = self._predictors() if self.predicts else []
        self.contents: Contents = []

    def _layer(self, inputs: int, outputs: int) -> LayerRegions:
        batch, row, column = self.network.batch, Store.ROW_VALUES, Store.COLUMN_VALUES
        return LayerRegions(
            self.main.matrix(row, inputs, batch),
            self.main.matrix(column, outputs, inputs),
            self.main.matrix(column, outputs, batch),
            self.main.matrix(row, outputs, batch),
            self.main.matrix(row, outputs, inputs),
        )

    def _predictors(self) -> list[PredictorRegions]:
        network, own = self.network, self.own
        shape, row, column = network.predictor, Store.ROW_VALUES, Store.COLUMN_VALUES
        banked = own.sizes.predictor_words > 0
        kernel = own.matrix(column, shape.channels, TAPS, own=banked)
        readout = own.matrix(column, network.widest, shape.features, own=banked)
        scratch = own.matrix(row, max(network.widest, shape.channels), max(shape.features, TAPS))
        regions = []
        for place, (inputs, outputs) in enumerate(network.layers):
            maps = outputs * network.cells
            gradient = own.matrix(row, outputs, inputs) if own is not self.main else self.layers[place].gradient
            regions.append(
                PredictorRegions(
                    kernel,
                    readout,
                    own.matrix(column, 1, outputs),
                    own.matrix(row, TAPS, maps),
                    own.matrix(row, shape.features, outputs),
                    gradient,
                    own.matrix(column, inputs, outputs),
                    own.matrix(column, shape.channels, maps),
                    scratch,
                )
            )
        return regions

    def compile(self, state: State) -> CompiledBatch:
        """Return the job for a batch that starts from `state`."""
        self._write(state)
        if self.phase == "gp":
            self._phase_gp()
        else:
            self._phase_bp()
        self.main.halt()
        codes = [self.main]
        if self.own is not self.main:
            self.own.halt()
            codes.append(self.own)
        first = self.predictors[0] if self.predictors else None
        return CompiledBatch(
            [code.program for code in codes],
            self.contents,
            [layer.weights for layer in self.layers],
            first.kernel if first else None,
            first.readout if first else None,
            0 if self.own is self.main else 1,
            codes,
        )

    def _write(self, state: State) -> None:
        """Say what the host writes before the batch."""
        at = 0 if self.own is self.main else 1
        self.contents = [(0, self.layers[0].inputs, state.inputs.T), (0, self.targets, state.targets.T)]
        self.contents += [
            (0, layer.weights, weight.T) for layer, weight in zip(self.layers, state.weights, strict=True)
        ]
        for place in self.predictors:
            self.contents.append((at, place.patches, zeros(place.patches)))
        if self.predictors:
            place = self.predictors[0]
            if self.blueprint.design == "low":
                text = np.concatenate([state.kernel.T.ravel(), state.readout.T.ravel()])
                off_chip = Matrix(Store.ROW_VALUES, 0, 1, len(text), 1)
                self.contents.append((1, off_chip, text[None]))
            else:
                self.contents += [(at, place.kernel, state.kernel.T), (at, place.readout, state.readout.T)]

    # The layers

    def _forward(self, place: int) -> None:
        """Layer `place`, forward: sums, the output as values for the predictor, and the next layer's inputs."""
        inputs, outputs = self.network.layers[place]
        batch, layer, sums = self.network.batch, self.layers[place], self.sums[0]
        self.main.array(Mode.ACROSS, inputs, outputs, batch, layer.inputs, sums, layer.weights)
        found = lines(Matrix(Store.COLUMN_SUMS, 0, outputs, batch, sums.lanes))
        count = (outputs, 1, batch)
        if self.predicts:
            self.main.elements(count, lines(layer.output), found)
        if place + 1 < len(self.layers):
            self.main.elements(count, lines(self.layers[place + 1].inputs), found, relu=True)
        elif self.phase == "bp":
            self.main.elements(count, lines(layer.error), found, lines(self.targets), factor=-1.0)

    def _update(self, place: int, gradient: Operand) -> None:
        """Take a step with a layer's weights."""
        inputs, outputs = self.network.layers[place]
        weights = lines(self.layers[place].weights)
        self.main.elements((outputs, 1, inputs), weights, weights, gradient, factor=-self.network.rate)

    def _mean(self, place: int) -> None:
        """Give the predictor the batch mean of a layer's outputs."""
        outputs = self.network.layers[place][1]
        mean = self.predictors[place].mean
        result = Operand(mean.memory, 0, mean.base, (1, 0, 0))
        result = result if self.own is self.main else result.remote
        seen = lines(self.layers[place].output)
        share = 1 / self.network.batch
        self.main.elements((outputs, 1, self.network.batch), result, None, seen, factor=share, running=True)

    def _phase_gp(self) -> None:
        if self.own is self.main:
            for place in range(len(self.layers)):
                self._forward(place)
                self._mean(place)
                self._load_predictor()
                self._predict(place)
                self._update(place, lines(self.layers[place].gradient))
            return
        for place in range(len(self.layers)):
            self._forward(place)
            self._meet()
            if place:
                self._update(place - 1, lines(self.predictors[place - 1].gradient).remote)
            self._mean(place)
            self._meet()
            self._predict(place)
        self._meet()
        self._update(len(self.layers) - 1, lines(self.predictors[-1].gradient).remote)
        self._meet()

    def _phase_bp(self) -> None:
        for place in range(len(self.layers)):
            self._forward(place)
        for place in reversed(range(len(self.layers))):
            self._weight_gradient(place)
            if self.own is not self.main:
                self._meet()
                inputs, outputs = self.network.layers[place]
                there = lines(self.predictors[place].gradient).remote
                self.main.elements((outputs, 1, inputs), there, lines(self.layers[place].gradient))
                self._mean(place)
                self._meet()
            self._input_gradient(place)
            self._update(place, lines(self.layers[place].gradient))
            if not self.predicts:
                continue
            if self.own is self.main:
                self._mean(place)
                self._load_predictor()
            self._learn(place)
            self._store_predictor()

    def _weight_gradient(self, place: int) -> None:
        inputs, outputs = self.network.layers[place]
        layer = self.layers[place]
        sums = Matrix(Store.COLUMN_SUMS, 0, outputs, inputs, self.sums[0].lanes)
        self.main.array(Mode.STATIONARY, inputs, outputs, self.network.batch, layer.inputs, layer.error, sums)
        self.main.elements((outputs, 1, inputs), lines(layer.gradient), lines(sums))

    def _input_gradient(self, place: int) -> None:
        """The error at the output of the layer below; the lowest layer has none."""
        if place == 0:
            return
        inputs, outputs = self.network.layers[place]
        batch, layer = self.network.batch, self.layers[place]
        sums = Matrix(Store.ROW_SUMS, 0, inputs, batch, self.sums[1].lanes)
        self.main.array(Mode.DOWN, inputs, outputs, batch, sums, layer.error, layer.weights)
        below = lines(self.layers[place - 1].error)
        self.main.elements((inputs, 1, batch), below, lines(sums), lines(layer.inputs), gate=True)

    # The predictor

    def _meet(self) -> None:
        self.main.meet()
        self.own.meet()

    def _features(self, place: int) -> None:
        """Patches of the mean, convolution, features. A fully connected layer's picture has one value everywhere."""
        network, own, regions = self.network, self.own, self.predictors[place]
        grid, cells, outputs = network.predictor.grid, network.cells, network.layers[place][1]
        mean = Operand(regions.mean.memory, 0, regions.mean.base, (1, 0, 0))
        for tap in range(TAPS):
            (top, bottom), (left, right) = (_inside(grid, shift) for shift in divmod(tap, 3))
            lane, address = regions.patches.at(tap)
            start = address + top * grid + left
            patches = Operand(Store.ROW_VALUES, lane, start, (cells, grid, 1))
            if bottom > top and right > left:
                own.elements((outputs, bottom - top, right - left), patches, mean)
        maps, channels = outputs * cells, network.predictor.channels
        sums = Matrix(Store.COLUMN_SUMS, 0, channels, maps, own.sizes.array.columns)
        own.array(Mode.ACROSS, TAPS, channels, maps, regions.patches, sums, regions.kernel)
        for channel in range(channels):
            lane, address = sums.at(channel)
            found = Operand(Store.COLUMN_SUMS, lane, address, (0, 1, cells))
            own.elements((1, cells, outputs), self._channel(place, channel), found, relu=True)

    def _channel(self, place: int, channel: int) -> Operand:
        """Walk a channel's features: loop 1 over cells, loop 2 over rows."""
        features = self.predictors[place].features
        lane, address = features.at(channel * self.network.cells)
        return Operand(features.memory, lane, address, (0, 0, 1), walk=1, wrap=features.extent)

    def _prediction(self, place: int) -> Operand:
        """Run the readout, and walk its sums: loop 0 over rows, loop 2 over a row's gradient."""
        inputs, outputs = self.network.layers[place]
        own, regions = self.own, self.predictors[place]
        sums = Matrix(Store.COLUMN_SUMS, 0, inputs, outputs, own.sizes.array.columns)
        features = self.network.predictor.features
        own.array(Mode.ACROSS, features, inputs, outputs, regions.features, sums, regions.readout)
        return words(sums)

    def _predict(self, place: int) -> None:
        """Leave the predicted gradient as values in the predictor's gradient region."""
        inputs, outputs = self.network.layers[place]
        self._features(place)
        found = self._prediction(place)
        self.own.elements((outputs, 1, inputs), lines(self.predictors[place].gradient), found)

    def _learn(self, place: int) -> None:
        """Take a step with the predictor's weights towards the true gradient, which is in its gradient region."""
        network, own, regions = self.network, self.own, self.predictors[place]
        inputs, outputs = network.layers[place]
        shape, cells = network.predictor, network.cells
        self._features(place)
        found = self._prediction(place)
        own.elements((outputs, 1, inputs), words(regions.error), found, lines(regions.gradient), factor=-1.0)
        at_features = Matrix(Store.ROW_SUMS, 0, shape.features, outputs, own.sizes.array.rows)
        own.array(Mode.DOWN, shape.features, inputs, outputs, at_features, regions.error, regions.readout)
        for channel in range(shape.channels):
            walk = self._channel(place, channel)
            sums = Operand(Store.ROW_SUMS, walk.lane, at_features.at(channel * cells)[1], walk.strides, 1, walk.wrap)
            lane, address = regions.at_maps.at(channel)
            result = Operand(regions.at_maps.memory, lane, address, (0, 1, cells))
            own.elements((1, cells, outputs), result, sums, walk, gate=True)
        self._step(regions.features, regions.error, regions.readout, (shape.features, inputs, outputs), regions.scratch)
        maps = (TAPS, shape.channels, outputs * cells)
        self._step(regions.patches, regions.at_maps, regions.kernel, maps, regions.scratch)

    def _step(self, row: Matrix, column: Matrix, weights: Matrix, sizes: tuple[int, int, int], scratch: Matrix) -> None:
        """Take the gradient of a matrix of the predictor's weights, and a step against it."""
        down, across, stream = sizes
        own = self.own
        sums = Matrix(Store.COLUMN_SUMS, 0, across, down, weights.lanes)
        own.array(Mode.STATIONARY, down, across, stream, row, column, sums)
        here = lines(Matrix(Store.ROW_VALUES, scratch.base, across, down, scratch.lanes))
        own.elements((across, 1, down), here, lines(sums))
        place = lines(weights)
        own.elements((across, 1, down), place, place, here, factor=-self.network.predictor_rate)

    def _swapped(self) -> list[tuple[tuple[int, int, int], Operand, Operand]]:
        """Return the predictor's matrices on the chip and off it."""
        regions, start, found = self.predictors[0], 0, []
        for matrix in (regions.kernel, regions.readout):
            away = Operand(Store.ROW_VALUES + REMOTE, 0, start, (matrix.extent, 0, 1))
            found.append(((matrix.lines, 1, matrix.extent), lines(matrix), away))
            start += matrix.lines * matrix.extent
        return found

    def _load_predictor(self) -> None:
        """In design low, fetch the predictor's weights."""
        if self.blueprint.design == "low":
            for counts, here, away in self._swapped():
                self.main.elements(counts, here, away)

    def _store_predictor(self) -> None:
        """In design low, write the predictor's weights back."""
        if self.blueprint.design == "low":
            for counts, here, away in self._swapped():
                self.main.elements(counts, away, here)


def _inside(grid: int, shift: int) -> tuple[int, int]:
    """Return the cells, from and below, whose neighbour at `shift` - 1 is inside the grid."""
    return max(0, 1 - shift), min(grid, grid + 1 - shift)
