"""Where methods stand at equal batches and at equal wall-clock: every one is read off where backprop ends."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adagp.core.intervals import Interval, interval
from adagp.program.report.groups import Chapter, MethodRuns, final_value, training_seconds
from adagp.program.run.metrics import Metric
from adagp.program.run.record import RunRecord

SAME = 0.05
"""Two ends that differ by less than this share count as one moment."""
MOST_MOMENTS = 4
BACKPROP = "bp"
Standing = tuple[MethodRuns, tuple[float, ...], Interval]
"""A group with its runs' values, and their mean."""


@dataclass(frozen=True)
class Values:
    """What the runs of some groups had reached at the same place, in the metric."""

    values: tuple[tuple[MethodRuns, tuple[float, ...]], ...]
    metric: Metric

    @property
    def ranking(self) -> list[Standing]:
        """Groups that have a value by then, best mean first."""
        known = [
            (group, values, one)
            for group, values in self.values
            if (one := interval(values, self.metric.bounds)) is not None
        ]
        return sorted(known, key=lambda entry: -self.metric.sign * entry[2].mean)


@dataclass(frozen=True)
class EqualTime(Values):
    """A stretch of training seconds, and who ends there."""

    seconds: float
    ends: MethodRuns


@dataclass(frozen=True)
class EqualBatches(Values):
    """A number of batches that several groups have trained; `ended` if that is the end of all of them."""

    batches: int
    ended: bool


def moments(chapter: Chapter) -> list[EqualTime]:
    """Return the ends of the groups in the order of time, those close together once, at most a few.

    Groups whose runs are not finished have no end yet; they count only where there are no others.
    """
    groups = [group for group in chapter.groups if _end(group)]
    finished = [group for group in groups if not group.unfinished] or groups
    chosen: list[MethodRuns] = []
    for group in sorted(finished, key=_end):
        if not chosen or _end(group) > _end(chosen[-1]) * (1 + SAME):
            chosen.append(group)
    kept = chosen if len(chosen) <= MOST_MOMENTS else [*chosen[: MOST_MOMENTS - 1], chosen[-1]]
    return [_moment(_end(group), group, chapter) for group in kept]


def value_at(run: RunRecord, seconds: float) -> float | None:
    """Return the run's test value after the last epoch that ended within `seconds` of training."""
    reached = [epoch for epoch, clock in zip(run.epochs, run.clock, strict=True) if clock <= seconds]
    return reached[-1].test_value if reached else None


def _end(group: MethodRuns) -> float:
    """Return when the group's runs end, on average, in training seconds; 0 if there are none."""
    seconds = group.over_runs(training_seconds)
    return seconds.mean if seconds else 0.0


def _moment(seconds: float, ends: MethodRuns, chapter: Chapter) -> EqualTime:
    """Read every run off at `seconds`; groups that end there or before, on average, count with their ends."""

    def read(group: MethodRuns) -> Callable[[RunRecord], float | None]:
        over = _end(group) <= seconds * (1 + SAME)
        return final_value if over else lambda run: value_at(run, seconds)

    values = tuple((group, _values(group, read(group))) for group in chapter.groups)
    return EqualTime(values, chapter.metric, seconds, ends)


def _values(group: MethodRuns, read: Callable[[RunRecord], float | None]) -> tuple[float, ...]:
    return tuple(value for run in group.counted if (value := read(run)) is not None)


def equal_time(chapter: Chapter) -> EqualTime | None:
    """Return the moment at which backprop ends: the time that the others have, too.

    Of several groups by backprop it is the one that is compared at equal batches. Where there is none, or nothing to compare
    it with, the first moment at which two groups have a value; else the last at which there is one; None without.
    """
    same = equal_batches(chapter)
    compared = [] if same is None else [group for group, _ in same.values]
    plain = [group for group in (*compared, *chapter.groups) if group.method == BACKPROP and _end(group)]
    found = moments(chapter)
    if plain:
        found = [_moment(_end(plain[0]), plain[0], chapter), *found]
    several = [moment for moment in found if len(moment.ranking) > 1]
    return several[0] if several else found[-1] if found else None


def equal_batches(chapter: Chapter) -> EqualBatches | None:
    """Return the number of batches at which most groups end, the largest of such; for groups under way, that they have reached.

    None where no two groups have the same number anywhere.
    """
    groups = [group for group in chapter.groups if group.counted]
    finished = [group for group in groups if not group.unfinished]
    ends = {group.label: {group.counted[0].batch_clock[-1]} for group in finished}
    if found := _most_shared(ends):
        return _at_batches(found, finished, ends, chapter.metric, ended=True)
    reached = {group.label: set.intersection(*(set(run.batch_clock) for run in group.counted)) for group in groups}
    found = _most_shared(reached)
    return _at_batches(found, groups, reached, chapter.metric, ended=False) if found else None


def _most_shared(numbers: dict[str, set[int]]) -> int:
    """Return the number that most of several sets have in common, the largest of such; 0 where no two have any."""
    counts = Counter(number for own in numbers.values() for number in own)
    count, number = max(((count, number) for number, count in counts.items()), default=(0, 0))
    return number if count > 1 else 0


def _at_batches(
    number: int, groups: Sequence[MethodRuns], numbers: dict[str, set[int]], metric: Metric, *, ended: bool
) -> EqualBatches:
    def read(run: RunRecord) -> float | None:
        return run.epochs[run.batch_clock.index(number)].test_value if number in run.batch_clock else None

    own = tuple((group, _values(group, read)) for group in groups if number in numbers[group.label])
    return EqualBatches(own, metric, number, ended)
