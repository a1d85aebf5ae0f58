"""A small network to train in hardware: layers with ReLU between them, fully connected or convolutions over a picture, and the
predictor of their gradients."""

import re
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import OptionError
from adagp.hw.predictor import KERNEL, PredictorShape
from adagp.rtl.formats import NumberFormat, Words

TAPS = KERNEL**2
KERNELS = (1, 3)
"""Sides of the layers' kernels."""


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
        if self.batch < 1:
            raise OptionError(f"batch is {self.batch}; it must be 1 or more.")
        if self.kernel not in KERNELS:
            raise OptionError(f"the kernel is {self.kernel}x{self.kernel}; layers in hardware have 1x1 or 3x3.")
        if self.kernel > 1 and self.picture == (1, 1):
            raise OptionError("a kernel of 3x3 needs a picture; give its size, for example 4x4.")
        grid = self.predictor.grid
        if self.picture != (1, 1) and any(side < 1 or side % grid for side in self.picture):
            shown = "x".join(map(str, self.picture))
            raise OptionError(
                f"the picture is {shown}; hardware pools it to {grid}x{grid}, so its sides must be multiples of {grid} "
                "(or 1x1: fully connected layers)."
            )

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer: channels, where it is a convolution."""
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
        raise OptionError(f"cannot read the picture '{picture}'; write HEIGHTxWIDTH, for example 8x8.")
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
