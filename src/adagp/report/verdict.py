"""Who wins at equal wall-clock: every method is read off at the time when the shortest ends."""

from dataclasses import dataclass

from adagp.report.groups import Chapter, MethodRuns, batches, final_value, seconds_of, training_seconds
from adagp.run.metrics import SHARE, Metric
from adagp.run.record import RunRecord
from adagp.statistics import Interval, difference, interval

SAME = 0.05
"""Two ends that differ by less than this share count as one moment."""
MOST_MOMENTS = 4
MOST_NAMED = 5
"""Methods that the verdict names; the table has all."""
UNEVEN = 1.5
"""How many times slower the same work may be in another run before the page warns."""


@dataclass(frozen=True)
class EqualTime:
    """A stretch of training seconds, and who ends there. `values` has for each group those of its runs in the metric."""

    seconds: float
    ends: MethodRuns
    values: tuple[tuple[MethodRuns, tuple[float, ...]], ...]
    metric: Metric

    @property
    def ranking(self) -> list[tuple[MethodRuns, tuple[float, ...], Interval]]:
        """Groups that have a value by then, best mean first."""
        known = [(group, values, one) for group, values in self.values if (one := interval(values)) is not None]
        return sorted(known, key=lambda entry: -self.metric.sign * entry[2].mean)


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

    def values(group: MethodRuns) -> tuple[float, ...]:
        over = _end(group) <= seconds * (1 + SAME)
        found = (final_value(run) if over else value_at(run, seconds) for run in group.counted)
        return tuple(value for value in found if value is not None)

    return EqualTime(seconds, ends, tuple((group, values(group)) for group in chapter.groups), chapter.metric)


def compared_at(chapter: Chapter) -> EqualTime | None:
    """Return the first moment at which two groups have a value; else the last at which there is one; None without."""
    found = moments(chapter)
    several = [moment for moment in found if len(moment.ranking) > 1]
    return several[0] if several else found[-1] if found else None


def seconds_text(seconds: float) -> str:
    """Return seconds for reading: three digits, or all before the point."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def verdict(chapter: Chapter) -> list[str]:
    """Say in two or three sentences who wins at equal wall-clock."""
    moment, metric = compared_at(chapter), chapter.metric
    ranking = moment.ranking if moment else []
    if moment is None or not ranking:
        return [f"No run has a finished epoch with a finite {metric.words} yet: there is nothing to compare."]
    if len(ranking) == 1:
        alone = f"{ranking[0][0].label} is here: {spoken(ranking[0][2], metric)}"
        return [f"Only {alone}. A comparison needs a second method."]
    (first, first_values, best), (second, second_values, _) = ranking[:2]
    others = ", ".join(f"{group.label} with {spoken(one, metric)}" for group, _, one in ranking[1:MOST_NAMED])
    rest = f" and {len(ranking) - MOST_NAMED} more" if len(ranking) > MOST_NAMED else ""
    head = (
        f"After {seconds_text(moment.seconds)} of training each, when {moment.ends.label} ends, {first.label} leads with "
        f"{spoken(best, metric)}, before {others}{rest}."
    )
    ends = (first_values, second_values) if metric.higher_is_better else (second_values, first_values)
    return [head, _judge(first, second, difference(*ends), metric), *_cautions(chapter)]


def spoken(one: Interval, metric: Metric) -> str:
    """Return a value with its interval in words; the metric is named where no per cent sign stands for it."""
    value = metric.text(one.mean) if metric.unit == SHARE else f"{metric.words} {metric.text(one.mean)}"
    if one.low is None or one.high is None:
        return f"{value} (one seed)"
    return f"{value} ({metric.bare(one.low)} to {metric.bare(one.high)}, {one.count} seeds)"


def _judge(first: MethodRuns, second: MethodRuns, gap: Interval, metric: Metric) -> str:
    points = f"{metric.bare(gap.mean)} points" if metric.unit == SHARE else metric.text(gap.mean)
    if gap.low is None or gap.high is None:
        return f"The difference is {points}; without several seeds of both there is no telling it from chance."
    bounds = f"{points} (95% interval {metric.bare(gap.low)} to {metric.bare(gap.high)})"
    if gap.low > 0:
        return f"{first.label} wins: the difference is {bounds}."
    return f"No clear winner: {first.label} is ahead of {second.label} by {bounds}: the interval includes zero."


def _cautions(chapter: Chapter) -> list[str]:
    unfinished = [group.label for group in chapter.groups if group.unfinished]
    words = [f"Not finished yet, counted as far as they are: {', '.join(unfinished)}."] if unfinished else []
    uneven, method = max((_unevenness(chapter, group.method), group.method) for group in chapter.groups)
    if uneven > UNEVEN:
        words.append(
            f"Mind the clock: a BP batch of {method} took {uneven:.1f} times as long in one run as in another. The machine "
            "was not equally free, so seconds cannot be compared well."
        )
    return words


def _unevenness(chapter: Chapter, method: str) -> float:
    """Return how many times longer the same work took in the slowest run of a method than in its fastest."""
    runs = (run for group in chapter.groups if group.method == method for run in group.counted)
    paces = [pace for run in runs if (pace := _pace(run))]
    return max(paces) / min(paces) if paces else 1.0


def _pace(run: RunRecord) -> float:
    """Return the mean seconds of a BP batch, the warm-up among them; 0 if there was none."""
    return (seconds_of(run, "bp") + seconds_of(run, "warmup")) / max(1, batches(run, "bp"))
