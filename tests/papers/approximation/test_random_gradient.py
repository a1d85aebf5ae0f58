"""Random gradients: their distribution, and that they depend on the step alone."""

import pytest
import torch
from torch import nn

from adagp.core.plan import Step
from adagp.layers.sites import Site, survey
from adagp.papers.approximation.random_gradient import RandomSource
from adagp.sources import BatchContext

SITES = survey(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 5, bias=False))).sites


def produced(source: RandomSource, sites: tuple[Site, ...], step: Step) -> list[torch.Tensor]:
    source.begin(BatchContext(step))
    return [one for one in source.produce(sites) if one is not None]


@pytest.mark.parametrize("samples", [4, 50])
def test_random_has_deviation_one_over_the_batch(samples: int) -> None:
    (site,) = survey(nn.Linear(300, 200, bias=False)).sites
    source = RandomSource()
    source.watch(site, (), torch.zeros(samples, 200))
    (one,) = produced(source, (site,), Step(0, 0))
    assert one.mean().item() == pytest.approx(0, abs=3 / samples / 60_000**0.5)
    assert one.std().item() == pytest.approx(1 / samples, rel=0.02)


def test_random_is_fresh_every_batch_and_the_same_for_the_same_step() -> None:
    def at(step: Step, seed: int = 0) -> torch.Tensor:
        source = RandomSource(seed)
        source.watch(SITES[0], (), torch.zeros(2, 3))
        return produced(source, SITES[:1], step)[0]

    assert torch.equal(at(Step(1, 5)), at(Step(1, 5)))
    assert not torch.equal(at(Step(1, 5)), at(Step(1, 6)))
    assert not torch.equal(at(Step(1, 5)), at(Step(1, 5), seed=1))


def test_random_gives_nothing_for_sites_that_were_not_called() -> None:
    source = RandomSource()
    source.watch(SITES[1], (), torch.zeros(2, 3))
    source.begin(BatchContext(Step(0, 0)))
    missing, found = source.produce(SITES)
    assert missing is None
    assert found is not None
    source.forget()
    assert source.produce(SITES) == [None, None]
