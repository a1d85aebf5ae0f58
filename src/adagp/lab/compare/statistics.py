"""Means with 95% intervals from a handful of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, cos, isfinite, pi, sin, sqrt, tan
from statistics import mean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """The mean of `count` values and the ends of its 95% interval, which are None for a single value."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Return mean and interval (Student's t) of the values that are there and finite; None if there are none."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known:
        return None
    centre = mean(known)
    if len(known) == 1:
        return Estimate(centre, None, None, 1)
    reach = t_quantile(len(known) - 1) * stdev(known) / sqrt(len(known))
    return Estimate(centre, centre - reach, centre + reach, len(known))


def estimate_fields(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return `name`_mean, `name`_low and `name`_high, all None if there is nothing to estimate."""
    found = estimate(values)
    return {f"{name}_{end}": None if found is None else getattr(found, end) for end in ("mean", "low", "high")}


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return the t with P(|T| < t) = `level` for Student's distribution with `freedom` degrees of freedom."""
    low, high = 0.0, pi / 2  # angles theta with t = sqrt(freedom) tan(theta); the probability rises with theta
    for _ in range(200):
        middle = (low + high) / 2
        if _within(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return sqrt(freedom) * tan(low)


def t_probability(value: float, freedom: int) -> float:
    """Return P(|T| < value)."""
    return _within(atan2(value, sqrt(freedom)), freedom)


def _within(angle: float, freedom: int) -> float:
    """Return P(|T| < sqrt(freedom) tan(angle)), a finite series for whole degrees of freedom."""
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else cos(angle) if odd else 1.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cos(angle) ** 2 * (power - 1) / power
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total
