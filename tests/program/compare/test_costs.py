"""Measured costs of batches, and how many fit into a budget."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.program.compare.costs import _cyclic_median, calibrate, longest_run, phase_counts, run_seconds
from adagp.program.run import TrainConfig
from adagp.program.tasks.base import build_task

COSTS = {"bp": 3.0, "gp": 1.0, "data": 0.5}


def run(batches: int, **options: object) -> TrainConfig:
    return TrainConfig.from_dict({"batches": batches, "ratio": "1:1", "warmup": 0, **options}, "test")


def test_a_runs_cost_by_hand() -> None:
    config = run(10, warmup=None, warmup_batches=4)
    assert phase_counts(config, 7) == {Phase.WARMUP: 4, Phase.GP: 4, Phase.BP: 2}  # the second epoch begins with GP
    assert run_seconds(config, COSTS, 7) == 6 * 3.0 + 4 * 1.0 + 10 * 0.5
    assert run_seconds(config, COSTS, 7, share=0.5) == 5 * 3.0 + 5 * 1.0 + 10 * 0.5
    assert run_seconds(TrainConfig(method="bp", batches=10), {"bp": 3.0, "data": 0.5}, 7) == 35


def test_the_median_of_batches_with_periodic_work() -> None:
    taken = [5.0, 1.0, 1.0, 1.0] * 3 + [90.0]  # one of four is dearer, and once something else was
    assert _cyclic_median(taken, 4) == pytest.approx((5 + 1 + 1 + 1) / 4)
    assert _cyclic_median(taken, 1) == 1
    assert _cyclic_median(taken[:2], 4) == 3


@pytest.mark.medium
def test_methods_are_timed_interleaved_on_batches_of_each_kind() -> None:
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
    costs = calibrate(configs, lambda config: task, 3, lambda: told.append(None))
    assert len(told) == 3
    kinds = {name: sorted(found) for name, found in costs.items()}
    only_backprop = ["bp", "data"]
    assert kinds == {name: only_backprop if name in ("bp", "never") else ["bp", "data", "gp"] for name in configs}
    assert all(seconds > 0 for found in costs.values() for seconds in found.values())


@pytest.mark.medium
@settings(max_examples=30)
@given(
    seconds=st.floats(0.1, 150),
    per_epoch=st.integers(1, 9),
    ratio=st.sampled_from(["1:1", "4:1", "1:3", "epochs:1:1", "ladder"]),
    method=st.sampled_from(["bp", "skip"]),
)
def test_the_most_batches_that_fit(seconds: float, per_epoch: int, ratio: str, method: str) -> None:
    """One batch more does not fit, and where a run's cost grows with its length, no longer run does."""
    config = run(5, ratio=ratio) if method == "skip" else TrainConfig(method="bp", batches=5)

    def cost(batches: int) -> float:
        return run_seconds(
            run(batches, ratio=ratio) if method == "skip" else TrainConfig(method="bp", batches=batches),
            COSTS,
            per_epoch,
        )

    found = longest_run(seconds, config, lambda own: run_seconds(own, COSTS, per_epoch), per_epoch)
    assert found == 1 or cost(found) <= seconds
    assert cost(found + 1) > seconds
    if ratio != "ladder":  # whose rungs depend on the length of the run
        assert found == max(1, *(batches for batches in range(1, 110) if cost(batches) <= seconds), 0)


def test_a_budget_below_the_warm_up_is_rejected() -> None:
    config = run(50, warmup=None, warmup_batches=20)

    def cost(own: TrainConfig) -> float:
        return run_seconds(own, COSTS, 100)

    assert longest_run(79, config, cost, 100) == 23  # 70 seconds of warm-up, then 1.5, 3.5 and 1.5
    with pytest.raises(
        OptionError, match="^warm-up of 20 batches does not fit a run of 20: nothing would be predicted."
    ):
        longest_run(60, config, cost, 100)


def test_a_method_whose_batches_cost_nothing_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        longest_run(5.0, run(10, ratio="1:0"), lambda config: 0.0, 7)
    assert str(caught.value) == "its batches cost so little that 16,384 of them are not enough for equal cost."
