"""What the learning sources have in common: summaries of outputs, a predictor network, its optimizer and its scheduler."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.layers.batch_means import KeptMean, stand_in
from adagp.layers.rules import kept_mean, summarize
from adagp.layers.shards import add_up_parts
from adagp.layers.sites import Site
from adagp.layers.weight_layout import gradient_norms
from adagp.sources.base import Rounds
from adagp.sources.pipeline import PipelineSource
from adagp.sources.support.learner import Learner, TrainedSource
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.options import LearningOptions


class LearnedSource(TrainedSource, PipelineSource):
    """A predictor network that maps summaries of sites' outputs to their weight gradients, and learns from the truth.

    A summary is the site's output averaged over the batch, one sample per weight row, pooled to `grid` x `grid`. Several
    forward calls in a batch (a layer used twice, micro-batches) are averaged, weighted by their number of samples. So are those
    of several processes, each with a share of the batch: then all of them predict, or learn, the same. Of spread weights only
    the rows held here are predicted; each process learns from its rows, and what the network learns is added up.
    """

    joins = True
    takes_spread = True

    def __init__(self, options: LearningOptions) -> None:
        self.options = options
        self._means: dict[Site, KeptMean] = {}
        self._waiting: dict[Site, tuple[Tensor, int]] = {}
        self._summaries: dict[Site, Tensor] = {}
        self._weights: dict[Site, int] = {}

    @abstractmethod
    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a fresh predictor network for `sites`."""

    @abstractmethod
    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return one prediction for each site, of as many numbers as its weight has, in units of its scale."""

    @abstractmethod
    def pool(self, samples: Tensor) -> Tensor:
        """Return samples `(rows, height, width)` as `(rows, 1, grid, grid)`."""

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Build the network, without touching the global random state, and what trains it."""
        self._norms = norms
        weight = sites[0].weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            self.network = self.build_network(sites).to(weight.device, torch.float32)
        self.learner = Learner(self.network, self.options)
        self._means = {site: kept_mean(site.rule, site.module) for site in sites}
        if sites[0].is_spread:
            self.learner.on_gradients = partial(add_up_parts, weight=weight)

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Add the pooled batch mean of `output` to the site's summary.

        A small one is pooled after the forward pass, together with those of the other sites: between two layers, whose data
        have just gone through the CPU's caches, everything that is small takes several times as long.
        """
        if site in self._waiting:
            self._pool_waiting()
        weight, output = output.shape[0], stand_in(site.module, inputs, output)
        samples = self._means[site].take(output)
        if samples is None:
            self._add(site, summarize(site.rule, site.module, output), weight)
        else:
            self._waiting[site] = samples, weight

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the predicted gradients of the sites that were called."""
        seen = self._called(sites)
        if not seen:
            return [None] * len(sites)
        flat, self._sizes = self.forecast(seen)
        if self.options.normalize:
            self._stretch(flat, self._scales(seen))
        if self.options.hold_norm:
            self._stretch(flat, self._norms.of(seen) / self._sizes.clamp(min=1e-30))
        found = {site: site.from_held(one).to(site.weight.dtype) for site, one in zip(seen, flat, strict=True)}
        return [found.get(site) for site in sites]

    def sizes(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norms that the prediction came with; a lower precision than its own may have changed them.

        A source derived from this one that changes what `produce` returns must answer for itself.
        """
        exact = all(gradient.dtype == torch.float32 for gradient in gradients)
        return self._sizes if exact else super().sizes(gradients)

    @torch.no_grad()
    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Take one step of Adam on the sum of the sites' mean squared errors."""
        truths = {site: site.share_of(truth.detach()).float() for site, truth in zip(sites, gradients, strict=True)}
        seen = self._called(sites)
        if seen:
            scales = self._scales(seen).clamp(min=1e-30) if self.options.normalize else None
            self.learner.step(self.learn(seen, [truths[site] for site in seen], scales))

    def forecast(self, sites: Sequence[Site]) -> tuple[list[Tensor], Tensor]:
        """Return the predictions for sites that were called, in the shape and memory order of the weights; and their norms.

        Here and in `learn` weights have their outputs first (see `Site.outputs_first`). Predictions are of the rows that are
        held here; the norms are those of all rows.
        """
        self.network.eval()
        flat = self.predict(sites, self.shared(sites))
        weights = [torch.empty_like(site.like, dtype=one.dtype) for site, one in zip(sites, flat, strict=True)]
        for site, weight, one in zip(sites, weights, flat, strict=True):
            weight.copy_(one.view(site.rows, -1)[site.held].view(weight.shape))
        return weights, gradient_norms(flat if sites[0].is_spread else weights)

    def learn(self, sites: Sequence[Site], truths: Sequence[Tensor], scales: Tensor | None) -> Tensor:
        """Put the gradient of the loss for sites that were called into the network's `.grad`; return the loss.

        It is the sum of the sites' mean squared errors, with each truth divided by its scale, if there are scales. Of a spread
        weight the truth has the rows `Site.share`, and the loss is this process's part of the mean over all rows.
        """
        self.network.train()
        with torch.enable_grad():
            predictions = self.predict(sites, self.shared(sites))
            if sites[0].is_spread:
                predictions = [
                    one.view(site.rows, -1)[site.share] for site, one in zip(sites, predictions, strict=True)
                ]
            aims = truths if scales is None else torch._foreach_div(list(truths), list(scales))
            losses = [
                F.mse_loss(one, aim.reshape(one.shape), reduction="sum") / site.weight.numel()
                if site.is_spread
                else F.mse_loss(one, aim.reshape(one.shape))
                for site, one, aim in zip(sites, predictions, aims, strict=True)
            ]
            return self.learner.differentiate(torch.stack(losses).sum())

    def shared(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the summaries of `sites`, to be averaged in place over processes that saw other samples of the batch."""
        return [self._summaries[site] for site in self._called(sites)]

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Average the summaries over the processes, weighted by their samples; one that saw none of a site counts nothing."""
        self._pool_waiting()
        device, grid = sites[0].weight.device, self.options.grid
        counts = torch.tensor([float(self._weights.get(site, 0)) for site in sites], device=device)
        sums = [
            self._summaries[site] * self._weights[site]
            if site in self._summaries
            else torch.zeros(site.rows, 1, grid, grid, device=device)
            for site in sites
        ]
        yield [counts, *sums]
        for site, total, count in zip(sites, sums, counts.tolist(), strict=True):
            if count:
                self._summaries[site], self._weights[site] = total.div_(count), int(count)

    def averaged(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the summaries of `sites`."""
        return self.shared(sites)

    def reduce_with(self, all_reduce: Callable[[list[Tensor]], None]) -> None:
        """Sum the network's gradients by this function before each step."""
        self.learner.on_gradients = all_reduce

    def replicated(self) -> Iterable[Tensor]:
        """Return the weights of the predictor network."""
        return self.network.state_dict().values()

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop the summaries of `sites` alone, whose batch is over before that of other sites."""
        for site in sites:
            self._waiting.pop(site, None)
            self._summaries.pop(site, None)
            self._weights.pop(site, None)

    def forget(self) -> None:
        """Drop the summaries of this batch."""
        self.drop([*self._waiting, *self._summaries])

    def _pool_waiting(self) -> None:
        for site, (samples, weight) in self._waiting.items():
            self._add(site, samples, weight)
        self._waiting.clear()

    def _add(self, site: Site, samples: Tensor, weight: int) -> None:
        pooled = self.pool(samples)
        total = self._weights.get(site, 0) + weight
        if site in self._summaries:
            self._summaries[site].lerp_(pooled, weight / total)
        else:
            self._summaries[site] = pooled
        self._weights[site] = total

    def _called(self, sites: Sequence[Site]) -> list[Site]:
        """Return those of `sites` that were called in this batch, and have a summary now."""
        self._pool_waiting()
        return [site for site in sites if site in self._summaries]

    def _stretch(self, gradients: list[Tensor], factors: Tensor) -> None:
        """Multiply predictions, and what is known of their norms, by `factors`."""
        torch._foreach_mul_(gradients, list(factors))
        self._sizes = self._sizes * factors

    def _scales(self, sites: Sequence[Site]) -> Tensor:
        """Return the root mean square of each site's true gradient, from its running norm."""
        norms = self._norms.of(sites)
        return norms / torch.tensor([site.weight.numel() ** 0.5 for site in sites]).to(norms)
