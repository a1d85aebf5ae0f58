"""A small model's sites, and batches that were watched."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from adagp.layers.sites import Site, survey
from adagp.sources import LearnedSource, RunningNorms

Sites = tuple[Site, ...]
Watch = Callable[..., list[Tensor]]


@pytest.fixture
def sites() -> Sites:
    """Return a convolution whose output is 6x6, and a linear layer with a wider row."""
    torch.manual_seed(3)
    return survey(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 5, bias=False))).sites


@pytest.fixture
def watch() -> Watch:
    """Return a function that shows a source one drawn output of each site, and returns the outputs."""

    def run(source: LearnedSource, sites: Sequence[Site], seed: int, samples: int = 4) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        outputs = []
        for site in sites:
            shape = (samples, site.rows, 6, 6) if isinstance(site.module, nn.Conv2d) else (samples, site.rows)
            outputs.append(torch.randn(shape, generator=generator).to(site.weight.dtype))
            source.watch(site, (), outputs[-1])
        return outputs

    return run


@pytest.fixture
def bound(sites: Sites) -> Callable[[LearnedSource], LearnedSource]:
    """Return a function that binds a source to the sites and gives it a read-out that is not zero."""

    def bind(source: LearnedSource) -> LearnedSource:
        norms = RunningNorms(sites)
        norms.update(sites, torch.tensor([0.5, 2.0]))
        source.bind(sites, norms)
        readout: nn.Linear = source.network.readout  # type: ignore[assignment]  # both networks have one
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            nn.init.normal_(readout.weight, std=0.2)
            nn.init.normal_(readout.bias, std=0.2)
        return source

    return bind
