from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from adagp.train.rates import CURVES, BatchRate


def optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    return torch.optim.SGD(groups, lr=0.3)


@pytest.mark.parametrize("curve", ["cosine", "linear"])
def test_the_rates_are_those_of_torchs_own_schedulers(curve: str) -> None:
    theirs, ours = optimizer(), optimizer()
    scheduler = CosineAnnealingLR(theirs, 11) if curve == "cosine" else LinearLR(theirs, 1.0, 0.0, total_iters=11)
    rate = BatchRate(curve, 0.3, 11)
    for done in range(12):
        rate.apply(ours, done)
        assert [group["lr"] for group in ours.param_groups] == [rate.at(done)] * 2
        assert rate.at(done) == pytest.approx(theirs.param_groups[1]["lr"], abs=1e-12)
        theirs.step()
        scheduler.step()


@pytest.mark.parametrize("curve", CURVES)
def test_a_rate_falls_from_the_highest_to_nothing(curve: str) -> None:
    rates = [BatchRate(curve, 0.3, 50).at(done) for done in range(51)]
    assert rates[0] == 0.3
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert all(later < sooner for sooner, later in pairwise(rates))
