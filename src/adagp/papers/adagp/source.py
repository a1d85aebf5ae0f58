"""ADA-GP's source: the shared predictor network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adagp.core.allocator import freed_memory_is_kept
from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.rules import pool_average
from adagp.layers.shards import add_up_parts
from adagp.layers.sites import Site
from adagp.layers.weight_layout import as_rows, as_weight, gradient_norms, taps_of
from adagp.papers.adagp.closed_form import ClosedForm, parts_of
from adagp.papers.adagp.network import PredictorNetwork
from adagp.sources.base import BatchContext
from adagp.sources.support.learned import LearnedSource
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.options import LearningOptions
from adagp.sources.support.randomness import step_generator


class PredictedSource(LearnedSource):
    """Predicts each row of a weight gradient from that row's output channel, with one network for all sites.

    With `parts` above 1 a BP batch teaches only one of so many equal parts of each site's rows, drawn afresh. The expected
    loss is the same, and of the true gradients that much less is read.
    """

    def __init__(self, options: LearningOptions | None = None, channels: int = 4, parts: int = 1) -> None:
        super().__init__(options or LearningOptions())
        if parts < 1:
            raise OptionError(f"the predictor learns from one of {parts} parts; it must be 1 or more.")
        self.channels = channels
        self.parts = parts
        self._step = Step(0, 0)
        self._closed_form: ClosedForm | None = None
        self._results: dict[Site, Tensor] = {}

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Build the network, and know how many sites there are."""
        super().bind(sites, norms)
        self._site_count = len(sites)

    def begin(self, context: BatchContext) -> None:
        """Keep the step, of which what is drawn is a function."""
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
        """Return what the network sees of the summaries, and what all samples share besides."""
        return summaries, None

    def forecast(self, sites: Sequence[Site]) -> tuple[list[Tensor], Tensor]:
        """Return the predictions, by matrix products in the memory order of the weights, and their norms."""
        summaries, context = self.view(sites, self.shared(sites))
        if sites[0].is_spread:
            summaries = [one[site.held] for site, one in zip(sites, summaries, strict=True)]
        likes = [site.like for site in sites]
        parts = parts_of([(len(like), site.width, taps_of(like)) for site, like in zip(sites, likes, strict=True)])
        rows = [self._result(site, len(like)) for site, like in zip(sites, likes, strict=True)]
        norms = self._form().predict(summaries, context, parts, rows)
        if sites[0].is_spread:
            self._add_up_norms(sites, norms)
        weights = [as_weight(one, like, part.taps) for one, like, part in zip(rows, likes, parts, strict=True)]
        return weights, norms

    def _add_up_norms(self, sites: Sequence[Site], norms: Tensor) -> None:
        """Make the norms of the rows that are held here those of all rows."""
        if not any(site.holds_rows for site in sites):
            return
        parts = torch.tensor([site.holds_rows for site in sites], device=norms.device)
        squares = norms[parts].square()
        add_up_parts([squares], sites[0].weight)
        norms[parts] = squares.sqrt()

    def learn(self, sites: Sequence[Site], truths: Sequence[Tensor], scales: Tensor | None) -> Tensor:
        """Put the gradient of the loss into the network's `.grad`, without autograd; return the loss."""
        self._results.clear()  # a BP batch needs its memory for activations
        summaries, context = self.view(sites, self.shared(sites))
        order = sorted(range(len(sites)), key=lambda place: (sites[place].width, sites[place].rows))
        taps = [taps_of(truth) for truth in truths]
        rows = [as_rows(truth, one) for truth, one in zip(truths, taps, strict=True)]
        norms, weights = self._norms.newest(sites), [1.0] * len(sites)
        if self.parts > 1 or sites[0].is_spread:
            drawn = [_within(part, site.share) for site, part in zip(sites, self._drawn(sites), strict=True)]
            summaries = [one[part] for one, part in zip(summaries, drawn, strict=True)]
            rows = [
                one[part.start - site.share.start : part.stop - site.share.start]
                for site, one, part in zip(sites, rows, drawn, strict=True)
            ]
            weights = [len(one) * min(self.parts, site.rows) / site.rows for one, site in zip(rows, sites, strict=True)]
            norms = gradient_norms(rows)
            order = [place for place in order if len(rows[place])]
            if not order:  # a process with so small a part that it has no row at all
                return self._learn_nothing()
        return self._form().learn(
            [summaries[place] for place in order],
            context,
            parts_of(
                [(len(rows[place]), sites[place].width, taps[place]) for place in order],
                [weights[place] for place in order],
            ),
            [rows[place] for place in order],
            norms[order],
            None if scales is None else scales[order].tolist(),
        )

    def _learn_nothing(self) -> Tensor:
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return torch.zeros((), device=next(self.network.parameters()).device)

    def _drawn(self, sites: Sequence[Site]) -> list[slice]:
        """Return the rows of each site that teach in this batch: one of `parts`, or one of all rows where these are fewer.

        What is drawn for a site depends on the step alone, not on which other sites teach here.
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
        """Return memory for a prediction, the same from one GP batch to the next: fresh memory costs a third as much again.

        Not so where freed memory is kept: it is what the last layers have just used, and still in the CPU's caches.
        """
        result = self._results.get(site)
        if result is None:
            result = torch.empty(rows, site.width, dtype=torch.float32, device=site.weight.device)
            if result.device.type != "cpu" or not freed_memory_is_kept():
                self._results[site] = result
        return result

    def pool(self, samples: Tensor) -> Tensor:
        """Average each channel down to the grid."""
        return pool_average(samples, self.options.grid)


def _within(rows: slice, share: slice) -> slice:
    """Return those of `rows` that are in `share`."""
    first = max(rows.start, share.start)
    return slice(first, max(first, min(rows.stop, share.stop)))
