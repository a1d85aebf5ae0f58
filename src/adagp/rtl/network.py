"""Small networks for the chip, and the golden model: what a batch of one computes, without lanes, addresses or cycles."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import OptionError, unknown_name
from adagp.hw.accelerator import KERNEL, PredictorShape
from adagp.rtl.formats import NumberFormat, Words

TAPS = KERNEL**2
KERNELS = (1, 3)
"""Sides of the layers' kernels."""


MOST_LAYERS, WIDEST = 64, 4096
"""Widths of a network at most, and the largest one; also of its batch and the sides of its pictures."""


@dataclass(frozen=True)
class SmallNetwork:
    """Layer widths, input first; samples per batch; the predictor's shape; steps of the weights and of the predictor's.

    With a `picture` (height, width) the layers are convolutions of `kernel` x `kernel` over it, with zeros around it, so that
    its size stays. The loss is half the squared error, summed over the batch and the picture. Layers and predictor have no
    biases.
    """

    widths: tuple[int, ...]
    batch: int = 4
    predictor: PredictorShape = field(default_factory=lambda: PredictorShape(grid=2, channels=2))
    rate: float = 2**-4
    predictor_rate: float = 2**-4
    picture: tuple[int, int] = (1, 1)
    kernel: int = 1

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise OptionError(f"a network of widths {self.widths} has no layer; give two or more widths, as 8-6-4.")
        if len(self.widths) > MOST_LAYERS or max(self.widths) > WIDEST:
            raise OptionError(
                f"a network of {len(self.widths):,} widths up to {max(self.widths):,} is too large for a simulated chip; at "
                f"most {MOST_LAYERS} widths of up to {WIDEST:,} are allowed."
            )
        if not 1 <= self.batch <= WIDEST:
            raise OptionError(f"batch is {self.batch}; it must be from 1 to {WIDEST:,}.")
        if self.kernel not in KERNELS:
            raise OptionError(f"the kernel is {self.kernel}x{self.kernel}; it must be 1x1 or 3x3.")
        if self.kernel > 1 and self.picture == (1, 1):
            raise OptionError("a kernel of 3x3 needs an image; give its size, for example --picture 4x4.")
        self._check_picture()

    def _check_picture(self) -> None:
        if max(self.picture) > WIDEST:
            raise OptionError(
                f"the picture is {self.picture[0]}x{self.picture[1]}; its sides must be at most {WIDEST:,}."
            )
        grid = self.predictor.grid
        if self.picture != (1, 1) and any(side < 1 or side % grid for side in self.picture):
            size = "x".join(map(str, self.picture))
            raise OptionError(
                f"the picture is {size}; hardware pools it to {grid}x{grid}, so its sides must be multiples of {grid} "
                "(or 1x1: fully connected layers)."
            )

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer: for a convolution, its channels."""
        return tuple(zip(self.widths[:-1], self.widths[1:], strict=True))

    @property
    def weights(self) -> tuple[tuple[int, int], ...]:
        """Weights of each output, and outputs, of each layer."""
        return tuple((inputs * self.kernel**2, outputs) for inputs, outputs in self.layers)

    @property
    def shifts(self) -> tuple[tuple[int, int], ...]:
        """Where the taps of a kernel look: rows down and columns right of an output's own pixel."""
        reach = range(-(self.kernel // 2), self.kernel // 2 + 1)
        return tuple((down, across) for down in reach for across in reach)

    @property
    def rows(self) -> int:
        """Rows of a layer's inputs and outputs: samples times pixels."""
        return self.batch * self.picture[0] * self.picture[1]

    @property
    def pooled(self) -> int:
        """Side of the picture of means that leaves a layer: 1 for fully connected ones, whose mean the predictor repeats."""
        return 1 if self.picture == (1, 1) else self.predictor.grid

    @property
    def window(self) -> tuple[int, int]:
        """Pixels that are pooled to one, down and across."""
        return self.picture[0] // self.pooled, self.picture[1] // self.pooled

    @property
    def cells(self) -> int:
        """Cells of the predictor's pooled picture."""
        return self.predictor.grid**2

    @property
    def widest(self) -> int:
        """The most weights of an output: outputs of the predictor."""
        return max(inputs for inputs, _ in self.weights)


def parse_network(text: str, picture: str = "1x1", **options: Any) -> SmallNetwork:
    """Return the network that `text` (`8-6-4`) and `picture` (`8x8`) describe."""
    if re.fullmatch(r"\d+(-\d+)+", text) is None:
        raise OptionError(f"cannot read the network '{text}'; write the widths of its layers, as 8-6-4.")
    if re.fullmatch(r"\d+x\d+", picture) is None:
        raise OptionError(f"cannot read the image size '{picture}'; write HEIGHTxWIDTH, for example 8x8.")
    height, width = map(int, picture.split("x"))
    return SmallNetwork(tuple(map(int, text.split("-"))), picture=(height, width), **options)


@dataclass(frozen=True)
class State:
    """All numbers of a batch: `weights` (inputs, each with its taps, x outputs) by layer, the predictor's `kernel` (taps x
    channels) and `readout` (features x outputs), inputs and targets (rows x width)."""

    weights: tuple[Words, ...]
    kernel: Words
    readout: Words
    inputs: Words
    targets: Words


Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Inputs and targets of a batch: rows x width each."""


def digits(network: SmallNetwork) -> Samples | None:
    """Return some of the packaged digits and their classes, if the network has as many inputs as they have pixels."""
    if network.widths[0] != 64 or network.widths[-1] != 10 or network.picture != (1, 1):
        return None
    with np.load(str(files("adagp.data") / "digits.npz")) as archive:
        pixels, classes = archive["x_train"][: network.batch], archive["y_train"][: network.batch]
    inputs = pixels.reshape(len(pixels), -1) / pixels.max()
    return inputs, np.eye(10)[classes]


def random_state(network: SmallNetwork, number: NumberFormat, seed: int = 0, samples: Samples | None = None) -> State:
    """Return a state of drawn numbers of moderate size, with drawn samples or the given ones."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, scale: float = 1.0) -> Words:
        return number.encode(rng.normal(size=shape) * scale)

    shape, ends = network.predictor, (network.widths[0], network.widths[-1])
    return State(
        tuple(draw(*layer, scale=layer[0] ** -0.5) for layer in network.weights),
        draw(TAPS, shape.channels, scale=0.5),
        draw(shape.features, network.widest, scale=0.2),
        *map(number.encode, samples or tuple(rng.normal(size=(network.rows, width)) for width in ends)),
    )


PHASES = ("bp", "gp")


def matmul(number: NumberFormat, left: Words, right: Words, sums: Words | None = None) -> Words:
    """Return the sums of a product, added one after the other, from zero or `sums` on, in the order of the shared index."""
    total = np.zeros((len(left), right.shape[1]), np.int64) if sums is None else sums
    for index in range(left.shape[1]):
        total = number.multiply_add(left[:, index, None], right[None, index], total)
    return total


def golden_forward(
    network: SmallNetwork, number: NumberFormat, weights: Sequence[Words], first: Words
) -> tuple[list[Words], list[Words], Words]:
    """Return the inputs of each layer, `first` those of the first, its outputs as values, and the sums of the last layer."""
    inputs, outputs = [first], []
    for weight in weights:
        sums = matmul(number, shifted(network, number, inputs[-1]), by_tap(network, weight))
        outputs.append(number.convert(sums))
        inputs.append(number.convert(number.relu(sums)))
    return inputs, outputs, sums


def golden_batch(network: SmallNetwork, number: NumberFormat, state: State, phase: str) -> State:
    """Return the state after one batch: Phase BP trains layers and predictor, Phase GP the layers by predictions."""
    if phase not in PHASES:
        raise unknown_name("phase", phase, PHASES)
    inputs, outputs, sums = golden_forward(network, number, state.weights, state.inputs)
    weights = list(state.weights)
    rate = number.encode(-network.rate)
    if phase == "gp":
        for layer, output in enumerate(outputs):
            _, features = _features(network, number, state, output)
            gradient = number.convert(matmul(number, features, state.readout[:, : len(weights[layer])])).T
            weights[layer] = _update(number, weights[layer], gradient, rate)
        return replace(state, weights=tuple(weights))
    minus = number.encode(-1.0)
    error = number.convert(number.multiply_add(minus, state.targets, sums))
    for layer in reversed(range(len(weights))):
        gradient = by_input(network, number.convert(matmul(number, shifted(network, number, inputs[layer]).T, error)))
        below = matmul(number, shifted(network, number, error, -1), _turned(network, weights[layer]))
        weights[layer] = _update(number, weights[layer], gradient, rate)
        state = _learn(network, number, state, outputs[layer], gradient)
        error = np.where(number.positive(inputs[layer]), number.convert(below), number.encode(0.0))
    return replace(state, weights=tuple(weights))


def shifted(network: SmallNetwork, number: NumberFormat, matrix: Words, sign: int = 1) -> Words:
    """Return the pixel that each tap of the kernel reads at each pixel of a matrix (pixels x channels): pixels x taps and
    channels.

    With `sign` -1 each tap reads in the opposite direction. Around the picture there are zeros.
    """
    (height, width), reach = network.picture, network.kernel // 2
    pictures = matrix.reshape(network.batch, height, width, -1)
    framed = np.pad(pictures, ((0, 0), (reach, reach), (reach, reach), (0, 0)), constant_values=int(number.encode(0.0)))
    views = [
        framed[:, reach + sign * down :, reach + sign * across :][:, :height, :width] for down, across in network.shifts
    ]
    return np.stack(views, axis=3).reshape(len(matrix), -1)


def by_tap(network: SmallNetwork, weight: Words) -> Words:
    """Return a layer's weights, taps of an input next to each other, with inputs of a tap next to each other instead."""
    return weight.reshape(-1, len(network.shifts), weight.shape[1]).transpose(1, 0, 2).reshape(weight.shape)


def by_input(network: SmallNetwork, weight: Words) -> Words:
    """Undo `by_tap`."""
    return weight.reshape(len(network.shifts), -1, weight.shape[1]).transpose(1, 0, 2).reshape(weight.shape)


def _turned(network: SmallNetwork, weight: Words) -> Words:
    """Return the weights of the backward product from outputs to inputs: taps and outputs x inputs."""
    taps = len(network.shifts)
    return weight.reshape(-1, taps, weight.shape[1]).transpose(1, 2, 0).reshape(taps * weight.shape[1], -1)


def pooled_means(network: SmallNetwork, number: NumberFormat, output: Words) -> Words:
    """Return the mean of a layer's outputs (rows x channels) over batch and windows: channels x pooled x pooled.

    Outputs are added one after the other, as they leave the array: sample by sample, pixel by pixel.
    """
    side, (height, width) = network.pooled, network.window
    windows = output.reshape(network.batch, side, height, side, width, -1).transpose(0, 2, 4, 5, 1, 3)
    unit, total = number.encode(1.0), np.zeros(windows.shape[3:], np.int64)
    for outputs in windows.reshape(-1, *windows.shape[3:]):
        total = number.multiply_add(unit, outputs, total)
    count = network.batch * height * width
    return number.convert(number.scale(total, *number.share(count)) if count > 1 else total)


def _update(number: NumberFormat, weight: Words, gradient: Words, rate: Words) -> Words:
    return number.convert(number.multiply_add(rate, gradient, number.promote(weight)))


def _features(network: SmallNetwork, number: NumberFormat, state: State, output: Words) -> tuple[Words, Words]:
    """Return the predictor's patches (rows and cells x taps) and features (rows x channels and cells) of a layer's output."""
    grid, channels = network.predictor.grid, network.predictor.channels
    mean = pooled_means(network, number, output)
    picture = np.full((len(mean), grid + 2, grid + 2), number.encode(0.0))
    picture[:, 1:-1, 1:-1] = mean
    patches = np.stack(
        [
            picture[:, row : row + 3, column : column + 3].reshape(len(mean), TAPS)
            for row in range(grid)
            for column in range(grid)
        ],
        axis=1,
    ).reshape(-1, TAPS)
    values = number.convert(number.relu(matmul(number, patches, state.kernel)))
    features = values.reshape(len(mean), network.cells, channels).transpose(0, 2, 1).reshape(len(mean), -1)
    return patches, features


def _learn(network: SmallNetwork, number: NumberFormat, state: State, output: Words, gradient: Words) -> State:
    """Return the state with the predictor's weights one step nearer to predicting `gradient` (inputs x outputs)."""
    width, channels = len(gradient), network.predictor.channels
    patches, features = _features(network, number, state, output)
    rate = number.encode(-network.predictor_rate)
    readout = state.readout[:, :width]
    error = number.convert(number.multiply_add(number.encode(-1.0), gradient.T, matmul(number, features, readout)))
    at_features = number.convert(matmul(number, error, readout.T))
    at_hidden = np.where(number.positive(features), at_features, number.encode(0.0))
    at_readout = number.convert(matmul(number, features.T, error))
    rows = len(features)
    at_maps = at_hidden.reshape(rows, channels, network.cells).transpose(0, 2, 1).reshape(-1, channels)
    at_kernel = number.convert(matmul(number, patches.T, at_maps))
    new = state.readout.copy()
    new[:, :width] = _update(number, readout, at_readout, rate)
    return replace(state, readout=new, kernel=_update(number, state.kernel, at_kernel, rate))
