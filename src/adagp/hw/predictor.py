"""The gradient predictor as work for the array.

It sees one sample for each output channel (or neuron) of a layer: the batch-mean output pooled to a small grid. One
3x3 convolution makes `channels` feature maps of the grid; one fully connected layer makes from them the gradient of
the channel's weights. The fully connected layer is as wide as the widest layer needs; for narrower layers the surplus
outputs are not computed.
"""

import re
from dataclasses import dataclass

from adagp.errors import OptionError
from adagp.hw.product import Operation, Product, Window
from adagp.hw.workload import ArrayLayer

KERNEL = 3
MOST_FEATURES = 1 << 20


@dataclass(frozen=True)
class PredictorShape:
    """Sizes of the predictor: the pooled grid's side and the convolution's channels."""

    grid: int = 4
    channels: int = 4

    def __post_init__(self) -> None:
        if self.grid < 1 or self.channels < 1:
            raise OptionError(
                f"a predictor of grid {self.grid} and {self.channels} channels is not allowed: both must be at least 1."
            )
        if self.features > MOST_FEATURES:
            raise OptionError(
                f"a predictor of grid {self.grid} and {self.channels} channels has {self.features:,} features; "
                f"at most {MOST_FEATURES:,} are allowed."
            )

    def __str__(self) -> str:
        return f"{self.grid}x{self.channels}"

    @property
    def features(self) -> int:
        """Inputs of the fully connected layer."""
        return self.channels * self.grid**2

    def weights(self, layer: ArrayLayer) -> int:
        """Predictor weights in words that are used for `layer`."""
        return KERNEL**2 * self.channels + self.features * (layer.weights // layer.samples)

    def parameters(self, width: int) -> int:
        """Return its weights and biases for a model whose widest row of a weight gradient has `width` numbers."""
        return (KERNEL**2 + 1) * self.channels + (self.features + 1) * width

    def products(self, layer: ArrayLayer) -> tuple[Product, Product]:
        """Return the convolution and the fully connected layer that predict the gradient of `layer`."""
        window = Window(layer.samples, (KERNEL, KERNEL), (self.grid, self.grid))
        convolution = Product(layer.samples * self.grid**2, KERNEL**2, self.channels, window=window)
        return convolution, Product(layer.samples, self.features, layer.weights // layer.samples)

    def training(self, layer: ArrayLayer) -> tuple[Product, ...]:
        """Return the products that train the predictor on `layer`; its convolution needs no input gradient."""
        convolution, connected = self.products(layer)
        return (
            connected.gradient(Operation.INPUT_GRADIENT),
            connected.gradient(Operation.WEIGHT_GRADIENT),
            convolution.gradient(Operation.WEIGHT_GRADIENT),
        )


def parse_predictor(text: str) -> PredictorShape:
    """Return the predictor that `text` (`4x4`) describes."""
    match = re.fullmatch(r"(-?\d+)x(-?\d+)", text.strip())
    if match is None:
        raise OptionError(f"cannot read the predictor '{text}'; write GRIDxCHANNELS, for example 4x4.")
    return PredictorShape(int(match[1]), int(match[2]))
