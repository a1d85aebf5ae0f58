"""The length of a run, and its schedule."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import Phase, Step
from adagp.engine.length import read_schedule, run_length
from adagp.errors import OptionError


@given(st.integers(1, 100_000))
def test_a_run_without_epochs_has_all_of_its_steps(steps: int) -> None:
    length = run_length(None, None, None, steps)
    assert (length.epochs - 1) * length.batches_per_epoch < steps <= length.epochs * length.batches_per_epoch


@pytest.mark.parametrize("steps", [50, 61, 539, 4001])
@pytest.mark.parametrize("ratio", ["1:1", "2:1", "1:3", "4:1"])
def test_alternations_go_on_where_there_are_no_epochs(steps: int, ratio: str) -> None:
    length = run_length(None, None, None, steps)
    schedule = read_schedule(None, ratio, length, None, 10)
    phases = [schedule.phase(Step(*divmod(step, length.batches_per_epoch))) for step in range(10, steps)]
    predicted, true = map(int, ratio.split(":"))
    changes = [place for place, (before, after) in enumerate(pairwise(phases), 1) if before is Phase.BP is not after]
    assert all(later - earlier == predicted + true for earlier, later in pairwise(changes))
    assert phases.count(Phase.GP) == pytest.approx(len(phases) * predicted / (predicted + true), abs=predicted + true)


def test_a_run_needs_a_length() -> None:
    with pytest.raises(OptionError) as caught:
        run_length(None, None, None, 0)
    assert str(caught.value) == "a run needs at least 1 step; got 0."
