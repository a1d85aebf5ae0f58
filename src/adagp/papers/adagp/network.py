"""The predictor of ADA-GP: one small network for all layers of a model."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PredictorNetwork(nn.Module):
    """One small convolution and one fully connected layer, shared by all sites.

    A sample is a `grid` x `grid` picture of one output channel; its prediction is that channel's row of the weight gradient.
    The fully connected layer is as wide as the largest site's row; for a smaller site only the rows of the layer that are
    needed are multiplied, so that masked outputs cost nothing.

    The fully connected layer starts at zero: an untrained predictor says "no gradient", not noise. It can see `context` more
    numbers that all samples of a batch share.
    """

    def __init__(self, width: int, grid: int = 4, channels: int = 4, context: int = 0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.readout = nn.Linear(channels * grid * grid + context, width)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(
        self, summaries: Sequence[Tensor], widths: Sequence[int], context: Tensor | None = None
    ) -> list[Tensor]:
        """Return the gradient rows `(rows, width)` of each site from its summary `(rows, 1, grid, grid)`.

        The convolution sees the rows of all sites at once; each site then takes its own slice of the read-out.
        """
        features = F.relu(self.convolution(torch.cat(list(summaries)))).flatten(1)
        if context is not None:
            features = torch.cat([features, context.expand(len(features), -1)], dim=1)
        parts = features.split([len(summary) for summary in summaries])
        weight, bias = self.readout.weight, self.readout.bias
        return [F.linear(part, weight[:width], bias[:width]) for part, width in zip(parts, widths, strict=True)]
