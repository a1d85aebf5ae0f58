"""Tensor re-mapping: a predictor of fixed size, whose one vector is repeated over each weight tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def remap(vector: Tensor, count: int) -> Tensor:
    """Return `count` numbers: whole copies of `vector`, the rest filled with its last value.

    A tensor smaller than the vector takes the vector's first `count` numbers: no whole copy fits, and a constant gradient
    would say nothing.
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

    The fully connected layer starts at zero: an untrained predictor says "no gradient", not noise.
    """

    def __init__(self, outputs: int = 10_000, grid: int = 4, channels: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (1, channels, channels, channels):
            layers += [
                nn.Conv2d(inputs, channels, kernel_size=3, padding=1),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.readout = nn.Linear(channels * grid * grid, outputs)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, summaries: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Return a flat tensor of `size` numbers for each site from its summary `(rows, 1, grid, grid)`."""
        vectors = self.readout(torch.stack([self.features(summary).mean(0) for summary in summaries]))
        return [remap(vector, size) for vector, size in zip(vectors, sizes, strict=True)]
