"""Tensor re-mapping: a predictor of fixed size, whose one vector is repeated over each weight tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.layers.rules import pool_maximum
from adagp.layers.sites import Site
from adagp.sources.learned import LearnedSource, LearningOptions


def remap(vector: Tensor, count: int) -> Tensor:
    """Return `count` numbers: whole copies of `vector`, the rest filled with its last value.

    A tensor smaller than the vector takes the vector's first `count` numbers: no whole copy fits, and a constant gradient would
    be useless.
    """
    size = vector.numel()
    copies, rest = divmod(count, size)
    if copies == 0:
        return vector[:count]
    return torch.cat([vector.repeat(copies), vector[-1:].expand(rest)])


class RemapNetwork(nn.Module):
    """Four convolutions with batch norm, and a fully connected layer to `outputs` numbers: one vector for each layer.

    The published network averages the vectors of all samples after the fully connected layer. Averaging the features before
    it gives the same vector, as the layer is linear, at a fraction (one over the number of samples) of the work.

    The fully connected layer starts at zero: an untrained predictor predicts no gradient, not noise.
    """

    def __init__(self, outputs: int = 10_000, grid: int = 4, channels: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (1, channels, channels, channels):
            layers += [nn.Conv2d(inputs, channels, kernel_size=3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.readout = nn.Linear(channels * grid * grid, outputs)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, summaries: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Return a flat tensor of `size` numbers for each site from its summary `(rows, 1, grid, grid)`."""
        vectors = self.readout(torch.stack([self.features(summary).mean(0) for summary in summaries]))
        return [remap(vector, size) for vector, size in zip(vectors, sizes, strict=True)]


class RemappedSource(LearnedSource):
    """Predicts one vector of `outputs` numbers per layer and repeats it over the layer's weight."""

    def __init__(self, options: LearningOptions | None = None, outputs: int = 10_000, channels: int = 64) -> None:
        super().__init__(options or LearningOptions(plateau=True))
        if outputs < 1:
            raise OptionError(f"the re-mapping predictor has {outputs} outputs; it must have 1 or more.")
        self.outputs = outputs
        self.channels = channels

    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a network whose size does not depend on the model's."""
        return RemapNetwork(self.outputs, self.options.grid, self.channels)

    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return a flat tensor for each site."""
        flat: list[Tensor] = self.network(summaries, [site.weight.numel() for site in sites])
        return flat

    def pool(self, samples: Tensor) -> Tensor:
        """Keep the largest value of each cell of the grid."""
        return pool_maximum(samples, self.options.grid)
