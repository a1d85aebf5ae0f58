"""The random gradient of Wang and Nelaturu."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.sources.base import Rounds
from adagp.sources.controls import NormalSource


class RandomSource(NormalSource):
    """Normal, mean 0, standard deviation 1 / batch size."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._samples: dict[Site, int] = {}

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Count the samples. Micro-batches add up; a layer that is called twice with the batch counts it twice."""
        is_single = output.dim() < (2 if site.rule.kind == "linear" else site.weight.dim())
        self._samples[site] = self._samples.get(site, 0) + (1 if is_single else output.shape[0])

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Count the samples of all processes."""
        counts = torch.tensor([float(self._samples.get(site, 0)) for site in sites], device=sites[0].weight.device)
        yield [counts]
        self._samples |= {site: int(count) for site, count in zip(sites, counts.tolist(), strict=True) if count}

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return random gradients for the sites that were called."""
        drawn = self.normal(sites)
        return [
            gradient.div_(self._samples[site]) if site in self._samples else None
            for site, gradient in zip(sites, drawn, strict=True)
        ]

    def forget(self) -> None:
        """Drop the counts of this batch."""
        self._samples.clear()
