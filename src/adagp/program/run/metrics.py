"""Metrics: what a task declares to measure its models by, and how its values are shown and compared. No torch here."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, TypeVar

from adagp.core.intervals import Bounds
from adagp.errors import OptionError, RunError

T = TypeVar("T")
SHARE = "share"
"""The unit of a number from 0 to 1 that is shown in per cent."""
TAKEN = (
    *("batches", "epoch", "group", "loss", "method", "name", "peak_memory", "ratio"),
    *("regime", "run", "runs", "seconds", "seed", "seeds", "sites"),
)
"""Names that stand for something else in the tables of runs and comparisons."""


@dataclass(frozen=True)
class Metric:
    """A measure of a model's quality; `name` is what the task calls it, and `test_NAME` is its column in files.

    `unit` is `share`, empty for a plain number, or the text after the number. `title` is the displayed name, by default `name`
    in words. No value is below `lowest` or above `highest`; None if unknown.
    """

    name: str
    unit: str = ""
    higher_is_better: bool = True
    title: str = ""
    lowest: float | None = field(default=None, compare=False, repr=False)  # older runs lack it
    highest: float | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in TAKEN:
            raise OptionError(
                f"a metric cannot be called '{self.name}'; use letters, digits and underscores, and none of: "
                f"{', '.join(TAKEN)}."
            )

    @property
    def words(self) -> str:
        """The name for people."""
        return self.title or self.name.replace("_", " ")

    @property
    def bounds(self) -> Bounds:
        """The lowest and the highest possible value, None if unknown; 0 and 1 for a share."""
        return (0.0, 1.0) if self.unit == SHARE else (self.lowest, self.highest)

    @property
    def heading(self) -> str:
        """The name for people with the unit, above numbers that are written without one (`bare`)."""
        return f"{self.words}, {self.suffix.strip()}" if self.suffix else self.words

    @property
    def suffix(self) -> str:
        """The text after a value."""
        return "%" if self.unit == SHARE else f" {self.unit}" if self.unit else ""

    @property
    def scale(self) -> float:
        """The factor on values in a column with `heading`."""
        return 100.0 if self.unit == SHARE else 1.0

    @property
    def sign(self) -> float:
        """1, or -1 if lower is better. Of two values multiplied by it, the higher one is better."""
        return 1.0 if self.higher_is_better else -1.0

    def bare(self, value: float) -> str:
        """Return a value for reading, without its unit."""
        return f"{100 * value:.2f}" if self.unit == SHARE else f"{value:.4g}"

    def text(self, value: float) -> str:
        """Return a value for reading, with its unit."""
        return f"{self.bare(value)}{self.suffix}"

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best of the values that are there and finite; None if there are none."""
        known = [value for value in values if value is not None and isfinite(value)]
        return max(known, key=lambda value: self.sign * value, default=None)

    def reaches(self, value: float | None, target: float) -> bool:
        """Return whether a value is as good as `target` or better."""
        return value is not None and self.sign * value >= self.sign * target

    def check_target(self, target: float) -> None:
        """Raise if no value can reach the target."""
        if self.unit == SHARE and not 0 < target <= 1:
            raise OptionError(f"--target is {target}; it must be above 0 and at most 1.")
        if not isfinite(target):
            raise OptionError(f"--target is {target}; it must be a finite number.")

    def front(self, points: Mapping[T, tuple[float, float]]) -> list[T]:
        """Return those of `points` (seconds, value) that no other beats in both, the fastest first."""
        front: list[T] = []
        for name in sorted(points, key=lambda name: (points[name][0], -self.sign * points[name][1])):
            if not front or self.sign * points[name][1] > self.sign * points[front[-1]][1]:
                front.append(name)
        return front


ACCURACY = Metric("accuracy", SHARE)
"""The share of right answers."""


def read_metrics(content: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Return the metrics that a configuration or a report holds as `metrics`; without them, it is about accuracy."""
    if "metrics" not in content:
        return (ACCURACY,)
    try:
        metrics = tuple(Metric(**entry) for entry in content["metrics"])
    except (AttributeError, OptionError, TypeError):
        metrics = ()
    if not metrics or not all(_is_whole(entry) for entry in metrics):
        raise RunError("its metrics cannot be read.")
    return metrics


def _is_whole(metric: Metric) -> bool:
    values: dict[str, Any] = asdict(metric)
    ends = (values[name] for name in ("lowest", "highest") if values[name] is not None)
    return all(isinstance(values[name], str) for name in ("unit", "title")) and all(
        isinstance(end, int | float) and isfinite(end) for end in ends
    )
