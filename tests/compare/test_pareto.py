from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.compare.pareto import spread


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_labels_are_apart_and_in_order(heights: list[float]) -> None:
    wanted = [(height, f"{place:02}") for place, height in enumerate(heights)]
    found = spread(wanted, 11)
    placed = [found[name] for _, name in sorted(wanted)]
    assert all(upper - lower > 11 - 1e-6 for lower, upper in pairwise(placed))
    assert sum(placed) == pytest.approx(sum(heights), abs=1e-6)


def test_labels_that_are_apart_stay() -> None:
    assert spread([(0, "a"), (50, "b"), (20, "c")], 11) == {"a": 0, "c": 20, "b": 50}
    assert spread([(0, "a"), (0, "b")], 10) == {"a": -5, "b": 5}
