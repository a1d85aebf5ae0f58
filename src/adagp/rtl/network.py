"""A small network to train in hardware: fully connected layers with ReLU between them, and the predictor of its gradients."""

import re
from dataclasses import dataclass, field

import numpy as np

from adagp.errors import OptionError
from adagp.hw.predictor import KERNEL, PredictorShape
from adagp.rtl.formats import NumberFormat, Words

TAPS = KERNEL**2


@dataclass(frozen=True)
class SmallNetwork:
    """Layer widths, input first; samples per batch; the predictor's shape; steps of the weights and of the predictor's.

    The loss is half the squared error, summed over the batch. Layers and predictor have no biases.
    """

    widths: tuple[int, ...]
    batch: int = 4
    predictor: PredictorShape = field(default_factory=lambda: PredictorShape(grid=2, channels=2))
    rate: float = 2**-4
    predictor_rate: float = 2**-4

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise OptionError(f"a network of widths {self.widths} has no layer; give two or more widths, as 8-6-4.")
        if self.batch < 1:
            raise OptionError(f"batch is {self.batch}; it must be 1 or more.")

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer."""
        return tuple(zip(self.widths[:-1], self.widths[1:], strict=True))

    @property
    def cells(self) -> int:
        """Cells of the predictor's pooled picture."""
        return self.predictor.grid**2

    @property
    def widest(self) -> int:
        """Inputs of the widest layer: outputs of the predictor."""
        return max(self.widths[:-1])


def parse_network(text: str, batch: int, predictor: PredictorShape, rate: float, predictor_rate: float) -> SmallNetwork:
    """Return the network that `text` (`8-6-4`) describes."""
    if re.fullmatch(r"\d+(-\d+)+", text) is None:
        raise OptionError(f"cannot read the network '{text}'; write the widths of its layers, as 8-6-4.")
    return SmallNetwork(tuple(map(int, text.split("-"))), batch, predictor, rate, predictor_rate)


@dataclass(frozen=True)
class State:
    """All numbers of a batch: `weights` (inputs x outputs) by layer, the predictor's `kernel` (taps x channels) and `readout`
    (features x outputs), inputs and targets (samples x width)."""

    weights: tuple[Words, ...]
    kernel: Words
    readout: Words
    inputs: Words
    targets: Words


def random_state(network: SmallNetwork, number: NumberFormat, seed: int = 0) -> State:
    """Return a state of drawn numbers of moderate size."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, scale: float = 1.0) -> Words:
        return number.encode(rng.normal(size=shape) * scale)

    shape = network.predictor
    return State(
        tuple(draw(*layer, scale=layer[0] ** -0.5) for layer in network.layers),
        draw(TAPS, shape.channels, scale=0.5),
        draw(shape.features, network.widest, scale=0.2),
        draw(network.batch, network.widths[0]),
        draw(network.batch, network.widths[-1]),
    )
