"""Random gradients: as published for approximation schedules, and as a control with the true gradient's norm."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.sources.base import BatchContext, Rounds, RunFacts, Source
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.randomness import step_generator


class NormalSource(Source):
    """Standard normal numbers, fresh every batch, a pure function of seed, step and the sites that are served.

    The numbers of all rows come from one stream, so each process draws them all, also those of rows that it does not hold.
    """

    joins = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the run's seed."""
        return cls(run.seed)

    def begin(self, context: BatchContext) -> None:
        """Keep the step, of which the numbers are a function."""
        self._step = context.step

    def normal(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return a standard normal tensor for each site's weight."""
        if not sites:
            return []
        device = sites[0].weight.device
        generator = step_generator(self.seed, self._step, device)
        return [
            torch.randn(site.weight.shape, generator=generator, device=device).to(site.weight.dtype) for site in sites
        ]


class RandomSource(NormalSource):
    """The random gradient of Wang and Nelaturu: normal, mean 0, standard deviation 1 / batch size."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._samples: dict[Site, int] = {}

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Count the samples. Micro-batches add up; a layer that is called twice with the batch counts it twice."""
        self._samples[site] = self._samples.get(site, 0) + output.shape[0]

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Count the samples of all processes."""
        counts = torch.tensor([float(self._samples.get(site, 0)) for site in sites], device=sites[0].weight.device)
        yield [counts]
        self._samples |= {site: int(count) for site, count in zip(sites, counts.tolist(), strict=True) if count}

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return random gradients for the sites that were called."""
        drawn = self.normal(sites)
        return [
            one.div_(self._samples[site]) if site in self._samples else None
            for site, one in zip(sites, drawn, strict=True)
        ]

    def forget(self) -> None:
        """Drop the counts of this batch."""
        self._samples.clear()


class NoiseSource(NormalSource):
    """A control: a random direction with the running norm of the site's true gradient; 0 before the first true one."""

    learns = True  # from the norms alone, which the engine keeps for sources that learn
    takes_spread = True

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Keep the running norms."""
        self._norms = norms

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return noise for every site."""
        drawn = self.normal(sites)
        sizes = torch._foreach_norm(drawn)
        ratios = [usual / size for usual, size in zip(self._norms.of(sites), sizes, strict=True)]
        torch._foreach_mul_(drawn, ratios)
        return list(drawn)
