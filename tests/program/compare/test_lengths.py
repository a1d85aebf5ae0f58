"""How many batches fit into a cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.program.compare.calibrate import seconds_of
from adagp.program.compare.longest import longest_run
from adagp.program.run import TrainConfig

COSTS = {"bp": 3.0, "gp": 1.0, "data": 0.5}


def run(batches: int, **options: object) -> TrainConfig:
    return TrainConfig.from_dict({"batches": batches, "ratio": "1:1", "warmup": 0, **options}, "test")


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
        return seconds_of(
            run(batches, ratio=ratio) if method == "skip" else TrainConfig(method="bp", batches=batches),
            COSTS,
            per_epoch,
        )

    found = longest_run(seconds, config, lambda own: seconds_of(own, COSTS, per_epoch), per_epoch)
    assert found == 1 or cost(found) <= seconds
    assert cost(found + 1) > seconds
    if ratio != "ladder":  # whose rungs depend on the length of the run
        assert found == max(1, *(batches for batches in range(1, 110) if cost(batches) <= seconds), 0)


def test_a_time_that_does_not_hold_the_warm_up_is_refused() -> None:
    config = run(50, warmup=None, warmup_batches=20)

    def cost(own: TrainConfig) -> float:
        return seconds_of(own, COSTS, 100)

    assert longest_run(79, config, cost, 100) == 23  # 70 seconds of warm-up, then 1.5, 3.5 and 1.5
    with pytest.raises(
        OptionError, match="^warm-up of 20 batches does not fit a run of 20: nothing would be predicted."
    ):
        longest_run(60, config, cost, 100)


def test_a_method_whose_batches_cost_nothing_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        longest_run(5.0, run(10, ratio="1:0"), lambda config: 0.0, 7)
    assert str(caught.value) == "its batches cost so little that 16,384 of them are not enough for equal cost."
