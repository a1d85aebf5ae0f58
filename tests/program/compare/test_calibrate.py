"""Costs of batches, measured."""

import pytest

from adagp.core.plan import Phase
from adagp.program.compare.calibrate import _typical, calibrate, phase_counts, seconds_of
from adagp.program.run import TrainConfig
from adagp.program.tasks.build import build_task

COSTS = {"bp": 3.0, "gp": 1.0, "data": 0.5}


def run(batches: int, **options: object) -> TrainConfig:
    return TrainConfig.from_dict({"batches": batches, "ratio": "1:1", "warmup": 0, **options}, "test")


def test_a_runs_cost_by_hand() -> None:
    config = run(10, warmup=None, warmup_batches=4)
    assert phase_counts(config, 7) == {Phase.WARMUP: 4, Phase.GP: 4, Phase.BP: 2}  # the second epoch begins with GP
    assert seconds_of(config, COSTS, 7) == 6 * 3.0 + 4 * 1.0 + 10 * 0.5
    assert seconds_of(config, COSTS, 7, share=0.5) == 5 * 3.0 + 5 * 1.0 + 10 * 0.5
    assert seconds_of(TrainConfig(method="bp", batches=10), {"bp": 3.0, "data": 0.5}, 7) == 35


def test_batches_that_come_in_cycles_count_by_their_share() -> None:
    taken = [5.0, 1.0, 1.0, 1.0] * 3 + [90.0]  # one of four is dearer, and once something else was
    assert _typical(taken, 4) == pytest.approx((5 + 1 + 1 + 1) / 4)
    assert _typical(taken, 1) == 1
    assert _typical(taken[:2], 4) == 3


@pytest.mark.medium
def test_methods_are_timed_in_turns_on_batches_of_each_kind() -> None:
    options = {"width": 0.25, "batch_size": 64, "warmup": None, "warmup_batches": 5, "metrics_every": 0}
    configs = {
        "bp": TrainConfig(method="bp", batches=30, width=0.25, batch_size=64),
        "skip": run(30, method="skip", **options),
        "adagp": run(30, method="adagp", **options),
        "some": run(30, **{**options, "method": "zero", "ratio": "approx:2"}),
        "all": run(30, **{**options, "method": "noise", "ratio": "1:0"}),
        "never": run(30, **{**options, "method": "noise", "ratio": "0:1"}),
        "adaptive": run(30, **{**options, "method": "feedback", "ratio": "adaptive:1-3"}),
    }
    task = build_task(configs["bp"])
    told: list[None] = []
    costs = calibrate(configs, task, 3, lambda: told.append(None))
    assert len(told) == 3
    kinds = {name: sorted(found) for name, found in costs.items()}
    only_backprop = ["bp", "data"]
    assert kinds == {name: only_backprop if name in ("bp", "never") else ["bp", "data", "gp"] for name in configs}
    assert all(seconds > 0 for found in costs.values() for seconds in found.values())
