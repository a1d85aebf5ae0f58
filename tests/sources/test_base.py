from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.sources import RunningNorms, Source


class Nothing(Source):
    """The least that a source must have."""

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        return [torch.zeros_like(site.weight) for site in sites]


def test_a_source_needs_one_method_only(sites: tuple[Site, ...]) -> None:
    source = Nothing()
    assert not source.learns
    source.bind(sites, RunningNorms(sites))
    source.watch(sites[0], (), torch.zeros(1))
    source.observe(sites, [site.weight for site in sites])
    source.forget()
    source.end_epoch()
    source.load_state_dict(source.state_dict())
    assert source.state_dict() == {}
