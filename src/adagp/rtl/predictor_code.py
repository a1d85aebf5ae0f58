"""Code of the predictor: patches of a layer's means, convolution, readout, and a step with its weights; weight stationary."""

from dataclasses import dataclass

from adagp.rtl.code import Code, Matrix, Operand, lines, words
from adagp.rtl.instructions import Store
from adagp.rtl.network import TAPS, SmallNetwork

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
                own.matrix(row, outputs, inputs) if gradients is None else gradients[place],
                own.matrix(column, inputs, outputs),
                own.matrix(column, shape.channels, outputs * network.cells),
                scratch,
            )
            for place, (inputs, outputs) in enumerate(network.weights)
        ]

    def mean(self, place: int) -> Operand:
        """Walk a layer's means: loop 0 over channels, loop 2 over cells."""
        mean = self.predictors[place].mean
        return Operand(mean.memory, 0, mean.base, (self.network.pooled**2, 0, 1))

    def features(self, place: int) -> None:
        """Patches of the mean, convolution, features. A fully connected layer's picture has one value everywhere."""
        network, own, regions = self.network, self.own, self.predictors[place]
        grid, cells, outputs = network.predictor.grid, network.cells, network.layers[place][1]
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
            found = Operand(Store.COLUMN_SUMS, lane, address, (0, 1, cells))
            own.elements((1, cells, outputs), self._channel(place, channel), found, relu=True)

    def _channel(self, place: int, channel: int) -> Operand:
        """Walk a channel's features: loop 1 over cells, loop 2 over rows."""
        features = self.predictors[place].features
        lane, address = features.at(channel * self.network.cells)
        return Operand(features.memory, lane, address, (0, 0, 1), walk=1, wrap=features.extent)

    def _prediction(self, place: int) -> Operand:
        """Run the readout, and walk its sums: loop 0 over rows, loop 2 over a row's gradient."""
        inputs, outputs = self.network.weights[place]
        own, regions = self.own, self.predictors[place]
        sizes = (outputs, self.network.predictor.features, inputs)
        return words(own.product(DATAFLOW, "forward", sizes, {"x": regions.features, "w": regions.readout}))

    def predict(self, place: int) -> None:
        """Leave the predicted gradient as values in the predictor's gradient region."""
        inputs, outputs = self.network.weights[place]
        self.features(place)
        found = self._prediction(place)
        self.own.elements((outputs, 1, inputs), lines(self.predictors[place].gradient), found)

    def learn(self, place: int) -> None:
        """Take a step with the predictor's weights towards the true gradient, which is in its gradient region."""
        network, own, regions = self.network, self.own, self.predictors[place]
        inputs, outputs = network.weights[place]
        shape, cells = network.predictor, network.cells
        self.features(place)
        found = self._prediction(place)
        own.elements((outputs, 1, inputs), words(regions.error), found, lines(regions.gradient), factor=-1.0)
        sizes = (outputs, shape.features, inputs)
        at_features = own.product(DATAFLOW, "dx", sizes, {"y": regions.error, "w": regions.readout})
        for channel in range(shape.channels):
            walk = self._channel(place, channel)
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
        place = lines(weights)
        own.elements((across, 1, down), place, place, here, factor=-self.network.predictor_rate)


def _inside(grid: int, shift: int) -> tuple[int, int]:
    """Return the cells, from and below, whose neighbour at `shift` - 1 is inside the grid."""
    return max(0, 1 - shift), min(grid, grid + 1 - shift)
