import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.lab.compare.statistics import Estimate, estimate, estimate_fields, t_probability, t_quantile

# Two-sided 95% points of Student's distribution, as printed in any table of it.
TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    9: 2.262,
    10: 2.228,
    19: 2.093,
    30: 2.042,
    120: 1.980,
}


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_quantiles_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert t_quantile(freedom) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("value", [0.1, 1.0, 3.0])
def test_probabilities_are_integrals_of_the_density(freedom: int, value: float) -> None:
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    steps = 4000
    middles = ((number + 0.5) * value / steps for number in range(steps))
    area = sum(constant * (1 + one * one / freedom) ** (-(freedom + 1) / 2) for one in middles) * value / steps
    assert t_probability(value, freedom) == pytest.approx(2 * area, abs=1e-6)


def test_an_interval_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert found.mean == 2.5
    reach = 3.182 * math.sqrt(5 / 3) / 2
    assert found.high == pytest.approx(2.5 + reach, abs=1e-3)
    assert found.low == pytest.approx(2.5 - reach, abs=1e-3)
    assert found.count == 4


def test_one_value_has_no_interval_and_what_is_missing_does_not_count() -> None:
    assert estimate([None, 0.5, math.nan]) == Estimate(0.5, None, None, 1)
    assert estimate([None]) is None
    assert estimate_fields("x", []) == {"x_mean": None, "x_low": None, "x_high": None}
    assert estimate_fields("x", [2.0, 2.0]) == {"x_mean": 2.0, "x_low": 2.0, "x_high": 2.0}


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9))
def test_the_mean_lies_in_the_middle(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    assert found.mean - found.low == pytest.approx(found.high - found.mean, abs=1e-9)
