"""Where methods stand at equal batches and at equal wall-clock: every one is read off where backprop ends."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adagp.core.intervals import Interval, difference, interval
from adagp.program.report.run_groups import Chapter, MethodRuns, batches, final_value, seconds_of, training_seconds
from adagp.program.run.metrics import SHARE, Metric
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


MOST_NAMED = 5
"""Methods that a sentence names; the table has all."""
UNEVEN = 1.5
"""How many times slower the same work may be in another run before the page warns."""


@dataclass(frozen=True)
class Finding:
    """A result: where the methods are compared, and who wins there, in a sentence."""

    place: str
    text: str


@dataclass(frozen=True)
class Headline:
    """What a chapter comes to: its results, and what to mind when reading them."""

    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]


def seconds_text(seconds: float) -> str:
    """Return seconds for reading: three digits, or all before the point."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def verdict(chapter: Chapter) -> Headline:
    """Say who wins at equal batches and at equal wall-clock, a sentence each, and what to mind."""
    metric = chapter.metric
    same, moment = equal_batches(chapter), equal_time(chapter)
    if moment is None or not moment.ranking:
        text = f"no run has a finished epoch with a finite {metric.words} yet."
        return Headline((Finding("Nothing to compare", text),), ())
    if len(moment.ranking) == 1:
        group, _, one = moment.ranking[0]
        so_far = f", {group.extent} so far" if group.unfinished else ""
        text = f"{group.label} with {spoken(one, metric)}{so_far}. A comparison needs a second method."
        return Headline((Finding("One method alone", text),), ())
    findings = []
    if same is not None and len(same.ranking) > 1:
        words = f"At equal batches, {same.batches:,} each" + ("" if same.ended else " so far")
        findings.append(Finding(words, judged(same.ranking, metric)))
    spent, label = seconds_text(moment.seconds), moment.ends.label
    words = f"{spent} so far" if moment.ends.unfinished else f"the {spent} that {label} takes"
    findings.append(Finding(f"At equal time, {words}", judged(moment.ranking, metric)))
    return Headline(tuple(findings), tuple(_cautions(chapter)))


def judged(ranking: Sequence[Standing], metric: Metric) -> str:
    """Say who wins, or that nobody does: a winner is clearly ahead of every other group."""
    (first, first_values, best), *others = ranking
    gaps = [(group, one, _ahead(first_values, values, metric)) for group, values, one in others]
    if any(gap.low is None for _, _, gap in gaps):
        return (
            f"{_listed(ranking, metric)}; without several seeds of each there is no telling the difference from chance."
        )
    level = [entry for entry, (_, _, gap) in zip(others, gaps, strict=True) if gap.low is not None and gap.low <= 0]
    if not level:
        second, one, gap = gaps[0]
        rest = f"; then {_listed(ranking[2:], metric)}" if len(ranking) > 2 else ""
        return (
            f"{first.label} wins with {spoken(best, metric)}, {_points(gap, metric)} ahead of {second.label} with "
            f"{spoken(one, metric)}{rest}."
        )
    behind = [entry for entry in others if entry not in level]
    rest = f"; behind them {_listed(behind, metric)}" if behind else ""
    between = "between" if len(level) == 1 else "among"
    gap = next(gap for group, _, gap in gaps if group is level[0][0])
    told = f", {_points(gap, metric)} apart" if len(level) == 1 else ""
    return f"no clear winner {between} {_listed([ranking[0], *level], metric)}{told}{rest}."


def _ahead(first: Sequence[float], second: Sequence[float], metric: Metric) -> Interval:
    """Return by how much the first is better than the second."""
    return difference(first, second) if metric.higher_is_better else difference(second, first)


def _listed(standings: Sequence[Standing], metric: Metric) -> str:
    """Return groups with their values, the first few of them."""
    named = [f"{group.label} with {spoken(one, metric)}" for group, _, one in standings[:MOST_NAMED]]
    left = len(standings) - len(named)
    if left:
        return f"{', '.join(named)} and {left} more"
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def spoken(one: Interval, metric: Metric) -> str:
    """Return a value with its interval in words; the metric is named where no per cent sign stands for it."""
    value = metric.text(one.mean) if metric.unit == SHARE else f"{metric.words} {metric.text(one.mean)}"
    if one.low is None or one.high is None:
        return f"{value} (one seed)"
    return f"{value} ({metric.bare(one.low)} to {metric.bare(one.high)}, {one.count} seeds)"


def _points(gap: Interval, metric: Metric) -> str:
    """Return a difference with its interval in words."""
    points = f"{metric.bare(gap.mean)} points" if metric.unit == SHARE else metric.text(gap.mean)
    if gap.low is None or gap.high is None:
        return points
    return f"{points} ({metric.bare(gap.low)} to {metric.bare(gap.high)})"


def _cautions(chapter: Chapter) -> list[str]:
    unfinished = [f"{group.label} ({group.extent})" for group in chapter.groups if group.unfinished]
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
