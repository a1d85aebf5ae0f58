"""Random gradients: their distribution, and that they depend on the step alone."""

import pytest
import torch
from torch import nn

from adagp.core.plan import Step
from adagp.layers.sites import Site, survey
from adagp.sources import BatchContext, NoiseSource, RandomSource, RunningNorms


def produced(source: RandomSource | NoiseSource, sites: tuple[Site, ...], step: Step) -> list[torch.Tensor]:
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


def test_random_is_fresh_every_batch_and_the_same_for_the_same_step(sites: tuple[Site, ...]) -> None:
    def at(step: Step, seed: int = 0) -> torch.Tensor:
        source = RandomSource(seed)
        source.watch(sites[0], (), torch.zeros(2, 3))
        return produced(source, sites[:1], step)[0]

    assert torch.equal(at(Step(1, 5)), at(Step(1, 5)))
    assert not torch.equal(at(Step(1, 5)), at(Step(1, 6)))
    assert not torch.equal(at(Step(1, 5)), at(Step(1, 5), seed=1))


def test_random_gives_nothing_for_sites_that_were_not_called(sites: tuple[Site, ...]) -> None:
    source = RandomSource()
    source.watch(sites[1], (), torch.zeros(2, 3))
    source.begin(BatchContext(Step(0, 0)))
    missing, found = source.produce(sites)
    assert missing is None
    assert found is not None
    source.forget()
    assert source.produce(sites) == [None, None]


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
