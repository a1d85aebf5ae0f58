"""ADA-GP's source, the shared predictor network, and two variants of it that show what its input is worth."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.memory import freed_memory_is_kept
from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.layers.summaries import pool_average
from adagp.layers.weights import all_reduce_shards, as_rows, as_weight, gradient_norms, kernel_taps
from adagp.papers.adagp.network import ClosedForm, PredictorNetwork, row_blocks
from adagp.sources.base import BatchContext, Rounds, RunningNorms, step_generator
from adagp.sources.learned import LearnedSource, LearningOptions, class_count, class_shares


class PredictedSource(LearnedSource):
    """Predicts each row of a weight gradient from that row's output channel, with one network for all sites.

    With `parts` above 1 it learns in a BP batch from 1/`parts` of each site's rows, drawn again for every batch. The expected
    loss is the same, and less of the true gradients is read.
    """

    def __init__(self, options: LearningOptions | None = None, channels: int = 4, parts: int = 1) -> None:
        super().__init__(options or LearningOptions())
        if parts < 1:
            raise OptionError(f"the predictor learns from 1/{parts} of the rows; parts must be 1 or more.")
        self.channels = channels
        self.parts = parts
        self._step = Step(0, 0)
        self._reuses_memory = True
        self._closed_form: ClosedForm | None = None
        self._results: dict[Site, Tensor] = {}

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Build the network."""
        super().bind(sites, norms)
        self._site_count = len(sites)
        self._reuses_memory = sites[0].weight.device.type != "cpu" or not freed_memory_is_kept()

    def begin(self, context: BatchContext) -> None:
        """Keep the step: random draws are a function of it."""
        self._step = context.step

    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a network as wide as the widest site."""
        return PredictorNetwork(max(site.width for site in sites), self.options.grid, self.channels)

    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return `(rows, width)` for each site."""
        summaries, context = self.view(sites, summaries)
        rows: list[Tensor] = self.network(summaries, [site.width for site in sites], context)
        return rows

    def view(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the summaries that the network sees, and features that all samples share."""
        return summaries, None

    def forecast(self, sites: Sequence[Site]) -> tuple[list[Tensor], Tensor]:
        """Return the predictions, by matrix products in the memory order of the weights, and their norms."""
        summaries, context = self.view(sites, self.shared(sites))
        if sites[0].is_sharded:
            summaries = [summary[site.local_rows] for site, summary in zip(sites, summaries, strict=True)]
        likes = [site.like for site in sites]
        blocks = row_blocks(
            [(len(like), site.width, kernel_taps(like)) for site, like in zip(sites, likes, strict=True)]
        )
        rows = [self._result(site, len(like)) for site, like in zip(sites, likes, strict=True)]
        norms = self._form().predict(summaries, context, blocks, rows)
        if sites[0].is_sharded:
            self._reduce_norms(sites, norms)
        weights = [as_weight(part, like, block.taps) for part, like, block in zip(rows, likes, blocks, strict=True)]
        return weights, norms

    def _reduce_norms(self, sites: Sequence[Site], norms: Tensor) -> None:
        """Replace the norms of the rows in this process by those of all rows."""
        if not any(site.has_whole_rows for site in sites):
            return
        sharded = torch.tensor([site.has_whole_rows for site in sites], device=norms.device)
        squares = norms[sharded].square()
        all_reduce_shards([squares], sites[0].weight)
        norms[sharded] = squares.sqrt()

    def learn(self, sites: Sequence[Site], truths: Sequence[Tensor], scales: Tensor | None) -> Tensor:
        """Put the gradient of the loss into the network's `.grad`, without autograd; return the loss."""
        self._results.clear()  # a BP batch needs the memory for activations
        summaries, context = self.view(sites, self.shared(sites))
        rows = [as_rows(truth, kernel_taps(truth)) for truth in truths]
        norms, weights = self._norms.newest(sites), [1.0] * len(sites)
        if self.parts > 1 or sites[0].is_sharded:
            summaries, rows, weights = self._drawn_rows(sites, summaries, rows)
            norms = gradient_norms(rows)
        order = _learning_order(sites, rows)
        if not order:  # a process whose shard is so small that it has no row
            return self._learn_nothing()
        sizes = [(len(rows[index]), sites[index].width, kernel_taps(truths[index])) for index in order]
        return self._form().learn(
            [summaries[index] for index in order],
            context,
            row_blocks(sizes, [weights[index] for index in order]),
            [rows[index] for index in order],
            norms[order],
            None if scales is None else scales[order].tolist(),
        )

    def _learn_nothing(self) -> Tensor:
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return torch.zeros((), device=next(self.network.parameters()).device)

    def _drawn_rows(
        self, sites: Sequence[Site], summaries: Sequence[Tensor], rows: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[float]]:
        """Return the summaries and true gradients of the rows to learn from here, and the weight of each site in the loss."""
        used = [_overlap(part, site.share) for site, part in zip(sites, self._drawn(sites), strict=True)]
        summaries = [summary[part] for summary, part in zip(summaries, used, strict=True)]
        rows = [
            truth[part.start - site.share.start : part.stop - site.share.start]
            for site, truth, part in zip(sites, rows, used, strict=True)
        ]
        weights = [len(truth) * min(self.parts, site.rows) / site.rows for truth, site in zip(rows, sites, strict=True)]
        return summaries, rows, weights

    def _drawn(self, sites: Sequence[Site]) -> list[slice]:
        """Return the rows of each site to learn from in this batch: one of `parts` parts, or one row if there are fewer.

        The draw for a site depends on the step only, not on which other sites learn here.
        """
        draws = torch.rand(self._site_count, generator=step_generator(self.options.seed, self._step)).tolist()
        slices = []
        for site in sites:
            parts = min(self.parts, site.rows)
            part = int(parts * draws[site.index])
            slices.append(slice(part * site.rows // parts, (part + 1) * site.rows // parts))
        return slices

    def _form(self) -> ClosedForm:
        if self._closed_form is None or self._closed_form.network is not self.network:
            assert isinstance(self.network, PredictorNetwork)
            self._closed_form = ClosedForm(self.network)
        return self._closed_form

    def _result(self, site: Site, rows: int) -> Tensor:
        """Return a buffer for a prediction, the same in every GP batch: writing newly mapped memory takes a third more time.

        If the allocator keeps freed memory, a new tensor is better: the last layers have just used its memory, so that it is in
        the CPU's caches.
        """
        result = self._results.get(site)
        if result is None:
            result = torch.empty(rows, site.width, dtype=torch.float32, device=site.weight.device)
            if self._reuses_memory:
                self._results[site] = result
        return result

    def pool(self, samples: Tensor) -> Tensor:
        """Average each channel down to the grid."""
        return pool_average(samples, self.options.grid)


class ShuffledSource(PredictedSource):
    """A control: the predictor, but each row sees the output channel of another row, drawn again for every batch.

    What it still predicts well does not come from the layer's output.
    """

    def view(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the summaries with their rows shuffled, in the same order in all calls of a batch."""
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
        self._counts, self._samples = torch.zeros(self._classes), 0
        return PredictorNetwork(
            max(site.width for site in sites), self.options.grid, self.channels, context=self._classes
        )

    def begin(self, context: BatchContext) -> None:
        """Count the classes of the batch."""
        super().begin(context)
        self._counts, self._samples = torch.zeros(self._classes), 0
        self.see_targets(context.targets)

    def see_targets(self, targets: Any) -> None:
        """Add the classes of a micro-batch."""
        shares = class_shares(targets, self._classes)
        self._counts = self._counts.to(shares.device) + shares.sum(0)
        self._samples += len(shares)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Sum the class counts along with the summaries."""
        counts = torch.cat([self._counts, self._counts.new_tensor([self._samples])]).to(sites[0].weight.device)
        for tensors in super().join(sites):  # one round
            yield [*tensors, counts]
        self._counts, self._samples = counts[:-1], int(counts[-1])

    def view(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the summaries, and the share of each class."""
        return summaries, (self._counts / max(1, self._samples)).to(summaries[0].device)


def _learning_order(sites: Sequence[Site], rows: Sequence[Tensor]) -> list[int]:
    """Return the indices of the sites with rows to learn from, the narrowest site first."""
    with_rows = [index for index in range(len(sites)) if len(rows[index])]
    return sorted(with_rows, key=lambda index: (sites[index].width, sites[index].rows))


def _overlap(rows: slice, share: slice) -> slice:
    first = max(rows.start, share.start)
    return slice(first, max(first, min(rows.stop, share.stop)))
