"""Two variants of ADA-GP's predictor that tell what its input is worth: one sees too little, the other more."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adagp.layers.sites import Site
from adagp.papers.adagp.network import PredictorNetwork
from adagp.papers.adagp.source import PredictedSource
from adagp.sources.base import BatchContext, Rounds
from adagp.sources.support.labels import class_count, class_shares
from adagp.sources.support.options import LearningOptions
from adagp.sources.support.randomness import step_generator


class ShuffledSource(PredictedSource):
    """A control: the predictor, but each row sees the output channel of another row, drawn afresh every batch.

    What it still predicts well, it does not take from the layer's output.
    """

    def view(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the summaries with their rows mixed. All calls in a batch use the same order."""
        generator = step_generator(self.options.seed, self._step)
        orders = [torch.randperm(len(summary), generator=generator) for summary in summaries]
        return [summary[order.to(summary.device)] for summary, order in zip(summaries, orders, strict=True)], None


class LabelledSource(PredictedSource):
    """The predictor, which also sees the share of each class in the batch."""

    needs_targets = True

    def __init__(
        self, options: LearningOptions | None = None, channels: int = 4, classes: int | None = None, parts: int = 1
    ) -> None:
        super().__init__(options, channels, parts)
        self.classes = classes

    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a network as wide as the widest site, with a feature for each class."""
        self._classes = class_count(sites, self.classes)
        return PredictorNetwork(
            max(site.width for site in sites), self.options.grid, self.channels, context=self._classes
        )

    def begin(self, context: BatchContext) -> None:
        """Count the classes of the batch."""
        super().begin(context)
        self._counts = torch.zeros(self._classes)
        self._samples = 0
        self.see_targets(context.targets)

    def see_targets(self, targets: Any) -> None:
        """Add the classes of a micro-batch."""
        shares = class_shares(targets, self._classes)
        self._counts = self._counts.to(shares.device) + shares.sum(0)
        self._samples += len(shares)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Add up the counts of the classes beside what all predictors join."""
        counts = torch.cat([self._counts, self._counts.new_tensor([self._samples])]).to(sites[0].weight.device)
        for tensors in super().join(sites):  # one round
            yield [*tensors, counts]
        self._counts, self._samples = counts[:-1], int(counts[-1])

    def view(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the summaries, and the share of each class."""
        return summaries, (self._counts / max(1, self._samples)).to(summaries[0].device)
