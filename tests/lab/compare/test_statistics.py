import math

from adagp.lab.compare.statistics import estimate, estimate_fields
from adagp.lab.intervals import Interval


def test_one_value_has_no_interval_and_what_is_missing_does_not_count() -> None:
    assert estimate([None, 0.5, math.nan]) == Interval(0.5, None, None, 1)
    assert estimate([None]) is None
    assert estimate_fields("x", []) == {"x_mean": None, "x_low": None, "x_high": None}
    assert estimate_fields("x", [2.0, 2.0]) == {"x_mean": 2.0, "x_low": 2.0, "x_high": 2.0}
