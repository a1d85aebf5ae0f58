"""Means with 95% confidence intervals (Student's t), clipped to the bounds of possible values; without torch or scipy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, isfinite, pi, sin, sqrt
from statistics import mean, variance

Bounds = tuple[float | None, float | None]
"""The least and the greatest possible value; None for no bound."""
UNBOUNDED: Bounds = (None, None)
NEVER_NEGATIVE: Bounds = (0.0, None)
"""Bounds of seconds, bytes and the like."""


@dataclass(frozen=True)
class Interval:
    """The mean of `count` values with its 95% confidence interval; `low` and `high` are None for one value."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def within(self, bounds: Bounds) -> "Interval":
        """Return the interval clipped to `bounds`, still containing the mean."""
        if self.low is None or self.high is None:
            return self
        least, greatest = bounds
        low = self.low if least is None else min(self.mean, max(self.low, least))
        high = self.high if greatest is None else max(self.mean, min(self.high, greatest))
        return Interval(self.mean, low, high, self.count)


def interval(values: Sequence[float], bounds: Bounds = UNBOUNDED) -> Interval | None:
    """Return the mean of `values` with its interval clipped to `bounds`; None without values."""
    if not values:
        return None
    if len(values) == 1:
        return Interval(values[0], None, None, 1)
    half = student_t(len(values) - 1) * sqrt(variance(values) / len(values))
    return Interval(mean(values), mean(values) - half, mean(values) + half, len(values)).within(bounds)


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return mean(first) - mean(second), with Welch's interval if both have several values."""
    gap, count = mean(first) - mean(second), min(len(first), len(second))
    if count < 2:
        return Interval(gap, None, None, count)
    parts = [variance(values) / len(values) for values in (first, second)]
    if sum(parts) == 0:
        return Interval(gap, gap, gap, count)
    shares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    half = student_t(int(sum(parts) ** 2 / shares)) * sqrt(sum(parts))  # degrees of freedom rounded down: conservative
    return Interval(gap, gap - half, gap + half, count)


@cache
def student_t(freedom: int, confidence: float = 0.95) -> float:
    """Return t with P(|T| < t) = `confidence` for Student's distribution with `freedom` (an integer) degrees of freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return P(|T| < t); a finite sum for integer degrees of freedom (Abramowitz and Stegun, 26.7.3-4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle), 0.0) if odd else (1.0, 0.0)
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= power / (power + 1) * cos(angle) ** 2
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def estimate(values: Sequence[float | None], bounds: Bounds = UNBOUNDED) -> Interval | None:
    """Return the mean and interval of the finite values; None if there are none."""
    return interval([value for value in values if value is not None and isfinite(value)], bounds)


def estimate_fields(name: str, values: Sequence[float | None], bounds: Bounds = UNBOUNDED) -> dict[str, float | None]:
    """Return `name`_mean, `name`_low and `name`_high, all None without a finite value."""
    result = estimate(values, bounds)
    return {f"{name}_{end}": None if result is None else getattr(result, end) for end in ("mean", "low", "high")}
