"""The source of tensor re-mapping: a fixed number of predicted values, repeated over each weight."""

from collections.abc import Sequence

from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.layers.rules import pool_maximum
from adagp.layers.sites import Site
from adagp.papers.remap.network import RemapNetwork
from adagp.sources.support.learned import LearnedSource
from adagp.sources.support.options import LearningOptions


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
