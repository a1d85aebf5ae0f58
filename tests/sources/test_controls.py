"""Controls: zero, skipped batches, remembered gradients against plain lists of them, noise."""

import io

import pytest
import torch
from torch import Tensor

from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.sources import (
    AverageSource,
    BatchContext,
    NoiseSource,
    ReplaySource,
    RunningNorms,
    SkipSource,
    ZeroSource,
    default_source,
)


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


def produced(source: NoiseSource, sites: tuple[Site, ...], step: Step) -> list[torch.Tensor]:
    source.begin(BatchContext(step))
    return [one for one in source.produce(sites) if one is not None]


def test_noise_has_the_running_norm_of_the_truth(sites: tuple[Site, ...]) -> None:
    norms = RunningNorms(sites)
    source = NoiseSource(seed=2)
    source.bind(sites, norms)
    assert all(one.norm() == 0 for one in produced(source, sites, Step(0, 0)))
    norms.update(sites, torch.tensor([0.5, 2.0]))
    first, again, other = (produced(source, sites, step) for step in (Step(0, 1), Step(0, 1), Step(0, 2)))
    torch.testing.assert_close(torch.stack([one.norm() for one in first]), torch.tensor([0.5, 2.0]))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
