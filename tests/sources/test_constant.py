import torch

from adagp.layers.sites import Site
from adagp.sources import SkipSource, ZeroSource, default_source


def test_zero_is_zero_and_its_own_tensor(sites: tuple[Site, ...]) -> None:
    for site, one in zip(sites, ZeroSource().produce(sites), strict=True):
        assert one is not None
        assert torch.equal(one, torch.zeros_like(site.weight))


def test_skip_gives_nothing(sites: tuple[Site, ...]) -> None:
    assert SkipSource().produce(sites) == [None, None]
    assert SkipSource.skips


def test_momentum_is_zero_under_another_name() -> None:
    assert isinstance(default_source("momentum"), ZeroSource)
    assert isinstance(default_source("zero"), ZeroSource)
    assert isinstance(default_source("skip"), SkipSource)
