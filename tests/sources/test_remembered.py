"""Replay and average against plain lists of gradients."""

import io

import pytest
import torch
from torch import Tensor

from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.sources import AverageSource, ReplaySource, RunningNorms


def truths(sites: tuple[Site, ...], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(site.weight.shape, generator=generator) for site in sites]


def bound(source: AverageSource, sites: tuple[Site, ...]) -> AverageSource:
    source.bind(sites, RunningNorms(sites))
    return source


@pytest.mark.parametrize("last", [1, 3])
def test_average_is_the_mean_of_the_last_true_gradients(last: int, sites: tuple[Site, ...]) -> None:
    source = bound(AverageSource(last) if last > 1 else ReplaySource(), sites)
    for one, site in zip(source.produce(sites), sites, strict=True):
        assert one is not None
        assert torch.equal(one, torch.zeros_like(site.weight))
    seen: list[list[Tensor]] = []
    for seed in range(7):
        seen.append(truths(sites, seed))
        source.observe(sites, seen[-1])
        for place, one in enumerate(source.produce(sites)):
            expected = torch.stack([batch[place] for batch in seen[-last:]]).mean(0)
            torch.testing.assert_close(one, expected)


def test_the_exponential_average_is_a_plain_mean_at_first(sites: tuple[Site, ...]) -> None:
    source = bound(AverageSource(decay=0.75), sites)
    expected = torch.zeros_like(sites[0].weight)
    for seed in range(9):
        truth = truths(sites, seed)
        source.observe(sites, truth)
        expected += max(1 / (seed + 1), 0.25) * (truth[0] - expected)
    torch.testing.assert_close(source.produce(sites)[0], expected)


def test_what_is_kept_and_given_are_copies(sites: tuple[Site, ...]) -> None:
    """Clipping changes gradients in place: before they are kept, and after they are given."""
    source = bound(ReplaySource(), sites)
    truth = truths(sites, 0)
    source.observe(sites, truth)
    before = truth[0].clone()
    truth[0].zero_()
    given = source.produce(sites)[0]
    assert given is not None
    assert torch.equal(given, before)
    given.zero_()
    again = source.produce(sites)[0]
    assert again is not None
    assert torch.equal(again, before)


@pytest.mark.parametrize("make", [ReplaySource, lambda: AverageSource(3), lambda: AverageSource(decay=0.5)])
def test_goes_on_exactly_from_its_state(make: type[ReplaySource], sites: tuple[Site, ...]) -> None:
    one, other = bound(make(), sites), bound(make(), sites)
    for seed in range(4):
        one.observe(sites, truths(sites, seed))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(4, 6):
        for source in (one, other):
            source.observe(sites, truths(sites, seed))
        assert all(
            pair[0] is not None and pair[1] is not None and torch.equal(pair[0], pair[1])
            for pair in zip(one.produce(sites), other.produce(sites), strict=True)
        )


def test_wrong_options() -> None:
    with pytest.raises(OptionError, match=r"^the average is taken over 0 gradients; it must be 1 or more\.$"):
        AverageSource(0)
    with pytest.raises(OptionError, match=r"^the average's decay is 1\.0; it must be 0 or more and below 1\.$"):
        AverageSource(decay=1.0)
