"""ADA-GP's source: the shared predictor network."""

from collections.abc import Sequence

from torch import Tensor, nn

from adagp.predictor.network import PredictorNetwork
from adagp.predictor.reorganize import pool_average
from adagp.sites import Site
from adagp.sources.base import SOURCES
from adagp.sources.learned import LearnedSource
from adagp.sources.options import LearningOptions


class PredictedSource(LearnedSource):
    """Predicts each row of a weight gradient from that row's output channel, with one network for all sites."""

    def __init__(self, options: LearningOptions | None = None, channels: int = 4) -> None:
        super().__init__(options or LearningOptions())
        self.channels = channels

    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a network as wide as the widest site."""
        return PredictorNetwork(max(site.width for site in sites), self.options.grid, self.channels)

    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return `(rows, width)` for each site."""
        rows: list[Tensor] = self.network(summaries, [site.width for site in sites])
        return rows

    def pool(self, samples: Tensor) -> Tensor:
        """Average each channel down to the grid."""
        return pool_average(samples, self.options.grid)


SOURCES.add("predicted", PredictedSource)
