from math import gamma, nan, pi, sqrt
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.intervals import NEVER_NEGATIVE, Interval, difference, estimate, estimate_fields, interval, student_t

FEW = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("freedom", "published"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_students_t_equals_textbook_tables(freedom: int, published: float) -> None:
    assert student_t(freedom) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8])
def test_students_t_bounds_the_area_of_the_density(freedom: int) -> None:
    scale = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
    width = student_t(freedom) / 20_000
    steps = ((place + 0.5) * width for place in range(20_000))
    area = 2 * width * sum(scale * (1 + at**2 / freedom) ** (-(freedom + 1) / 2) for at in steps)
    assert area == pytest.approx(0.95, abs=1e-6)


def test_intervals_of_zero_one_and_several_values() -> None:
    assert interval([]) is None
    assert interval([0.5]) == Interval(0.5, None, None, 1)
    found = interval([0.1, 0.2, 0.3])
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.high == pytest.approx(0.2 + 4.3027 * 0.1 / sqrt(3), abs=1e-5)


@given(FEW)
def test_an_interval_lies_around_the_mean(values: list[float]) -> None:
    found = interval(values)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    half = student_t(len(values) - 1) * stdev(values) / sqrt(len(values))
    assert found.high - found.low == pytest.approx(2 * half, abs=1e-9)


def test_difference_by_welchs_formula() -> None:
    first, second = [20.0, 22.0, 24.0], [10.0, 11.0, 12.0, 13.0]
    found = difference(first, second)
    assert found.mean == mean(first) - mean(second)
    error = sqrt(4 / 3 + (5 / 3) / 4)
    freedom = error**4 / ((4 / 3) ** 2 / 2 + (5 / 12) ** 2 / 3)
    assert 3 < freedom < 4
    assert found.low == pytest.approx(found.mean - student_t(3) * error)


def test_a_difference_of_single_values_has_no_interval() -> None:
    assert difference([3.0], [1.0, 2.0]) == Interval(1.5, None, None, 1)
    assert difference([3.0, 3.0], [1.0, 1.0]) == Interval(2.0, 2.0, 2.0, 2)


def test_one_value_has_no_interval_and_missing_values_are_skipped() -> None:
    assert estimate([None, 0.5, nan]) == Interval(0.5, None, None, 1)
    assert estimate([None]) is None
    assert estimate_fields("x", []) == {"x_mean": None, "x_low": None, "x_high": None}
    assert estimate_fields("x", [2.0, 2.0]) == {"x_mean": 2.0, "x_low": 2.0, "x_high": 2.0}


def test_intervals_are_clipped_to_the_possible_range() -> None:
    found = interval([0.5, 0.9], (0.0, 1.0))
    assert found == Interval(0.7, 0.0, 1.0, 2)
    seconds = interval([1.0, 9.0], NEVER_NEGATIVE)
    assert seconds is not None
    assert seconds.low == 0.0
    assert seconds.high == pytest.approx(5 + 12.706 * 4, abs=0.01)
    beyond = interval([1.5, 1.5], (0.0, 1.0))  # a value that cannot be: the mean is told as it is
    assert beyond == Interval(1.5, 1.5, 1.5, 2)
