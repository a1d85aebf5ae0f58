from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, ReduceLROnPlateau

from adagp.program.train.loop import CURVES, BatchRate, EpochRate, Rate, WarmUpRate


def optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    return torch.optim.SGD(groups, lr=0.3)


@pytest.mark.parametrize("curve", ["cosine", "linear"])
def test_the_rates_are_those_of_torchs_own_schedulers(curve: str) -> None:
    theirs, ours = optimizer(), optimizer()
    scheduler = CosineAnnealingLR(theirs, 11) if curve == "cosine" else LinearLR(theirs, 1.0, 0.0, total_iters=11)
    rate = BatchRate(ours, curve, 0.3, 11)
    for done in range(12):
        rate.before_batch(done)
        assert [group["lr"] for group in ours.param_groups] == [rate.at(done)] * 2
        assert rate.at(done) == pytest.approx(theirs.param_groups[1]["lr"], abs=1e-12)
        theirs.step()
        scheduler.step()


@pytest.mark.parametrize("curve", CURVES)
def test_a_rate_falls_from_the_highest_to_nothing(curve: str) -> None:
    rates = [BatchRate(optimizer(), curve, 0.3, 50).at(done) for done in range(51)]
    assert rates[0] == 0.3
    assert rates[-1] == pytest.approx(0.003 if curve == "exponential" else 0, abs=1e-12)
    assert all(later < sooner for sooner, later in pairwise(rates))


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Rate]] = {
    "constant": lambda one: Rate(),
    "steps": lambda one: EpochRate(MultiStepLR(one, [2, 4])),
    "plateau": lambda one: EpochRate(ReduceLROnPlateau(one, factor=0.5, patience=0), by_loss=True),
    "linear": lambda one: BatchRate(one, "linear", 0.3, 15),
    "cosine": lambda one: BatchRate(one, "cosine", 0.3, 15),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("warmup", [1, 4, 11, 15])
def test_a_warm_up_multiplies_the_rate_of_any_scheduler(kind: str, warmup: int) -> None:
    """Against the scheduler alone in another optimizer; the warmed one is saved and restored after every batch."""
    alone, ours = optimizer(), optimizer()
    alone_rate = SCHEDULERS[kind](alone)
    rate: Rate = WarmUpRate(SCHEDULERS[kind](ours), ours, warmup)
    for epoch, loss in enumerate([3.0, 3.0, 3.0, 2.0, 1.0]):
        for done in range(3 * epoch, 3 * epoch + 3):
            alone_rate.before_batch(done)
            rate.before_batch(done)
            factor = min(1.0, (done + 1) / warmup)
            for expected, group in zip(alone.param_groups, ours.param_groups, strict=True):
                assert group["lr"] == pytest.approx(expected["lr"] * factor, rel=1e-12)
                assert factor < 1 or group["lr"] == expected["lr"]
            alone.step()
            ours.step()
            rates, states = (ours.state_dict(), rate.state_dict())
            ours = optimizer()
            rate = WarmUpRate(SCHEDULERS[kind](ours), ours, warmup)
            ours.load_state_dict(rates)
            rate.load_state_dict(states)
            ours.step()  # torch warns of a scheduler whose optimizer never stepped
        alone_rate.after_epoch(loss)
        rate.after_epoch(loss)


def test_rates_by_epochs_follow_torchs_schedulers_and_all_have_the_same_calls() -> None:
    """Each in turn: three batches per epoch, a loss that stops falling; the states restore the rate exactly."""
    losses = [3.0, 2.0, 2.0, 2.0, 2.0]
    kinds: dict[str, Callable[[torch.optim.Optimizer], Rate]] = {
        "constant": lambda one: Rate(),
        "steps": lambda one: EpochRate(MultiStepLR(one, [2, 4])),
        "plateau": lambda one: EpochRate(ReduceLROnPlateau(one, factor=0.5, patience=1), by_loss=True),
        "linear": lambda one: BatchRate(one, "linear", 0.3, 15),
    }
    found = {}
    for name, make in kinds.items():
        ours = optimizer()
        rate, rates = make(ours), []
        for epoch, loss in enumerate(losses):
            for batch in range(3):
                rate.before_batch(3 * epoch + batch)
                ours.step()
            rates.append(round(ours.param_groups[0]["lr"], 6))
            rate.after_epoch(loss)
            state, rate = rate.state_dict(), make(ours)
            rate.load_state_dict(state)
        found[name] = rates
    assert found == {
        "constant": [0.3] * 5,
        "steps": [0.3, 0.3, 0.03, 0.03, 0.003],
        "plateau": [0.3, 0.3, 0.3, 0.3, 0.15],
        "linear": [0.26, 0.2, 0.14, 0.08, 0.02],
    }
