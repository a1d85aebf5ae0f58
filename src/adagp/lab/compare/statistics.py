"""Means with 95% intervals as fields of a record."""

from collections.abc import Sequence
from math import isfinite

from adagp.lab.intervals import Interval, interval


def estimate(values: Sequence[float | None]) -> Interval | None:
    """Return mean and interval of the values that are there and finite; None if there are none."""
    return interval([value for value in values if value is not None and isfinite(value)])


def estimate_fields(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return `name`_mean, `name`_low and `name`_high, all None if there is nothing to estimate."""
    found = estimate(values)
    return {f"{name}_{end}": None if found is None else getattr(found, end) for end in ("mean", "low", "high")}
