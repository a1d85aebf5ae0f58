"""Ranks methods at equal batches and at equal wall-clock time, where backprop ends; in numbers and in sentences."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adagp.core.intervals import Interval, difference, interval
from adagp.errors import RunError
from adagp.program.compare.verdict import read_report, regime_sentences, verdict_note
from adagp.program.report.run_groups import Chapter, MethodRuns, batches, final_value, seconds_of, training_seconds
from adagp.program.run.metrics import SHARE, Metric
from adagp.program.run.record import RunRecord

SAME = 0.05
"""Relative difference below which two end times count as one."""
MOST_MOMENTS = 4
BACKPROP = "bp"
Standing = tuple[MethodRuns, tuple[float, ...], Interval]
"""A method, its runs' values, and their mean with its interval."""


@dataclass(frozen=True)
class Values:
    """The metric of some methods' runs at the same time or number of batches."""

    values: tuple[tuple[MethodRuns, tuple[float, ...]], ...]
    metric: Metric

    @property
    def ranking(self) -> list[Standing]:
        """Methods with a value, best mean first."""
        known = [
            (group, values, estimate)
            for group, values in self.values
            if (estimate := interval(values, self.metric.bounds)) is not None
        ]
        return sorted(known, key=lambda standing: -self.metric.sign * standing[2].mean)


@dataclass(frozen=True)
class EqualTime(Values):
    """Values after `seconds` of training, the time at which the runs of `ends` end."""

    seconds: float
    ends: MethodRuns


@dataclass(frozen=True)
class EqualBatches(Values):
    """Values after `batches` batches; `ended` if these are whole runs."""

    batches: int
    ended: bool


def moments(chapter: Chapter) -> list[EqualTime]:
    """Return values at the end times of the methods, in order; similar times once, and at most a few.

    Methods with unfinished runs count only if there are no others.
    """
    groups = [group for group in chapter.groups if _end(group)]
    finished = [group for group in groups if not group.unfinished] or groups
    chosen: list[MethodRuns] = []
    latest = 0.0
    for group in sorted(finished, key=_end):
        if _end(group) > latest * (1 + SAME):
            chosen.append(group)
            latest = _end(group)
    listed = chosen if len(chosen) <= MOST_MOMENTS else [*chosen[: MOST_MOMENTS - 1], chosen[-1]]
    return [_moment(_end(group), group, chapter) for group in listed]


def value_at(run: RunRecord, seconds: float) -> float | None:
    """Return the test value of the last epoch that ended within `seconds` of training."""
    reached = [epoch for epoch, clock in zip(run.epochs, run.clock, strict=True) if clock <= seconds]
    return reached[-1].test_value if reached else None


def _end(group: MethodRuns) -> float:
    seconds = group.over_runs(training_seconds)
    return seconds.mean if seconds else 0.0


def _moment(seconds: float, ends: MethodRuns, chapter: Chapter) -> EqualTime:
    """Return the values at `seconds`; methods that end then or earlier, on average, have their final values."""

    def read(group: MethodRuns) -> Callable[[RunRecord], float | None]:
        ended = _end(group) <= seconds * (1 + SAME)
        return final_value if ended else lambda run: value_at(run, seconds)

    values = tuple((group, _values(group, read(group))) for group in chapter.groups)
    return EqualTime(values, chapter.metric, seconds, ends)


def _values(group: MethodRuns, read: Callable[[RunRecord], float | None]) -> tuple[float, ...]:
    return tuple(value for run in group.counted if (value := read(run)) is not None)


def equal_time(chapter: Chapter) -> EqualTime | None:
    """Return the values at the time when backprop ends.

    If there are several backprop runs of different options, it is the one compared at equal batches. Without backprop, or with
    nothing to compare it with, it is the first end time at which two methods have a value, else the last one, else None.
    """
    same = equal_batches(chapter)
    compared = [] if same is None else [group for group, _ in same.values]
    plain = [group for group in (*compared, *chapter.groups) if group.method == BACKPROP and _end(group)]
    ends = moments(chapter)
    if plain:
        ends = [_moment(_end(plain[0]), plain[0], chapter), *ends]
    if not ends:
        return None
    return next((moment for moment in ends if len(moment.ranking) > 1), ends[-1])


def equal_batches(chapter: Chapter) -> EqualBatches | None:
    """Return the values at the number of batches at which most methods end (ties: the largest).

    If no two finished methods end alike, it is the number that most methods have reached; None if no two share any.
    """
    groups = [group for group in chapter.groups if group.counted]
    finished = [group for group in groups if not group.unfinished]
    ends = {group.label: {group.counted[0].batch_clock[-1]} for group in finished}
    if number := _most_shared(ends):
        return _at_batches(number, finished, ends, chapter.metric, ended=True)
    reached = {group.label: set.intersection(*(set(run.batch_clock) for run in group.counted)) for group in groups}
    number = _most_shared(reached)
    return _at_batches(number, groups, reached, chapter.metric, ended=False) if number else None


def _most_shared(numbers: dict[str, set[int]]) -> int:
    """Return the number that is in the most sets (ties: the largest); 0 if no two sets share any."""
    counts = Counter(number for own in numbers.values() for number in own)
    count, number = max(((count, number) for number, count in counts.items()), default=(0, 0))
    return number if count > 1 else 0


def _at_batches(
    number: int, groups: Sequence[MethodRuns], numbers: dict[str, set[int]], metric: Metric, *, ended: bool
) -> EqualBatches:
    def read(run: RunRecord) -> float | None:
        return run.epochs[run.batch_clock.index(number)].test_value if number in run.batch_clock else None

    values = tuple((group, _values(group, read)) for group in groups if number in numbers[group.label])
    return EqualBatches(values, metric, number, ended)


MOST_NAMED = 5
"""Methods that a sentence lists; the table has all."""
MOST_REGIMES = 2
"""Regimes of a comparison that the headline names; the comparison's own tables have all."""
UNEVEN = 1.5
"""Ratio of the speeds of two runs above which methods are not ranked at equal time."""


@dataclass(frozen=True)
class Finding:
    """A result: at which equal batches or time, and which method is best there."""

    place: str
    text: str


@dataclass(frozen=True)
class Headline:
    """The results of a chapter, and cautions."""

    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]


def seconds_text(seconds: float) -> str:
    """Format seconds with three digits, or as an integer from 100 on."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def verdict(chapter: Chapter) -> Headline:
    """Return a sentence on the best method at equal batches and at equal wall-clock time each, and cautions."""
    metric = chapter.metric
    same, moment = equal_batches(chapter), equal_time(chapter)
    if moment is None or not moment.ranking:
        text = f"no run has a finished epoch with a finite {metric.words} yet."
        return Headline((Finding("Nothing to compare", text),), ())
    if len(moment.ranking) == 1:
        group, _, estimate = moment.ranking[0]
        so_far = f", {group.extent} so far" if group.unfinished else ""
        text = f"{group.label} with {value_text(estimate, metric)}{so_far}. A comparison needs a second method."
        return Headline((Finding("One method alone", text),), ())
    if (compared := compared_headline(chapter)) is not None:
        return compared
    findings = []
    if same is not None and len(same.ranking) > 1:
        words = f"At equal batches, {same.batches:,} each" + ("" if same.ended else " so far")
        findings.append(Finding(words, judged(same.ranking, metric)))
    cautions = _cautions(chapter)
    if uneven := _uneven_timing(chapter):
        return Headline(tuple(findings), (*cautions, uneven))
    spent, label = seconds_text(moment.seconds), moment.ends.label
    words = f"{spent} so far" if moment.ends.unfinished else f"the {spent} that {label} takes"
    findings.append(Finding(f"At equal time, {words}", judged(moment.ranking, metric)))
    return Headline(tuple(findings), tuple(cautions))


def compared_headline(chapter: Chapter) -> Headline | None:
    """Return the results in the report of the comparison that the runs belong to; None without a finished comparison."""
    if chapter.comparison is None:
        return None
    try:
        document = read_report(chapter.comparison)
        sentences = regime_sentences(document)[:MOST_REGIMES]
        note = verdict_note(document)
    except (AttributeError, KeyError, RunError, TypeError):
        return None
    return Headline(tuple(Finding(f"At {equal}", text) for equal, text in sentences), (note,)) if sentences else None


def judged(ranking: Sequence[Standing], metric: Metric) -> str:
    """Return a sentence: a winner is significantly better than every other method, or there is none."""
    (_, best_values, _), *others = ranking
    gaps = [_ahead(best_values, values, metric) for _, values, _ in others]
    if any(gap.low is None for gap in gaps):
        return f"{_listed(ranking, metric)}; several seeds of each are needed to tell a difference from chance."
    return _tie(ranking, gaps, metric) if any(map(_is_level, gaps)) else _win(ranking, gaps[0], metric)


def _is_level(gap: Interval) -> bool:
    return gap.low is not None and gap.low <= 0


def _win(ranking: Sequence[Standing], gap: Interval, metric: Metric) -> str:
    (first, _, best), (second, _, estimate), *others = ranking
    rest = f"; then {_listed(others, metric)}" if others else ""
    return (
        f"{first.label} wins with {value_text(best, metric)}, {_points(gap, metric)} ahead of {second.label} with "
        f"{value_text(estimate, metric)}{rest}."
    )


def _tie(ranking: Sequence[Standing], gaps: Sequence[Interval], metric: Metric) -> str:
    """Return the sentence without a winner; `gaps` are those of the first method to each other one."""
    others = list(zip(ranking[1:], gaps, strict=True))
    level = [ranking[0], *(other for other, gap in others if _is_level(gap))]
    behind = [other for other, gap in others if not _is_level(gap)]
    rest = f"; behind them {_listed(behind, metric)}" if behind else ""
    if len(level) > 2:
        return f"no clear winner among {_listed(level, metric)}{rest}."
    gap = next(filter(_is_level, gaps))
    return f"no clear winner between {_listed(level, metric)}, {_points(gap, metric)} apart{rest}."


def _ahead(first: Sequence[float], second: Sequence[float], metric: Metric) -> Interval:
    return difference(first, second) if metric.higher_is_better else difference(second, first)


def _listed(standings: Sequence[Standing], metric: Metric) -> str:
    named = [f"{group.label} with {value_text(estimate, metric)}" for group, _, estimate in standings[:MOST_NAMED]]
    left = len(standings) - len(named)
    if left:
        return f"{', '.join(named)} and {left} more"
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def value_text(estimate: Interval, metric: Metric) -> str:
    """Format a value with its interval; the metric is named unless it is a percentage."""
    value = metric.text(estimate.mean) if metric.unit == SHARE else f"{metric.words} {metric.text(estimate.mean)}"
    if estimate.low is None or estimate.high is None:
        return f"{value} (one seed)"
    return f"{value} ({metric.bare(estimate.low)} to {metric.bare(estimate.high)}, {estimate.count} seeds)"


def _points(gap: Interval, metric: Metric) -> str:
    points = f"{metric.bare(gap.mean)} points" if metric.unit == SHARE else metric.text(gap.mean)
    if gap.low is None or gap.high is None:
        return points
    return f"{points} ({metric.bare(gap.low)} to {metric.bare(gap.high)})"


def _cautions(chapter: Chapter) -> list[str]:
    unfinished = [f"{group.label} ({group.extent})" for group in chapter.groups if group.unfinished]
    return [f"Not finished yet, compared at their latest epoch: {', '.join(unfinished)}."] if unfinished else []


def _uneven_timing(chapter: Chapter) -> str:
    """Return why methods are not ranked at equal time, if the runs of a method were not equally fast."""
    uneven, method = max((_unevenness(chapter, group.method), group.method) for group in chapter.groups)
    if uneven <= UNEVEN:
        return ""
    return (
        f"No ranking at equal time: a BP batch of {method} took {uneven:.1f} times as long in one run as in another, so the "
        "machine was not equally loaded."
    )


def _unevenness(chapter: Chapter, method: str) -> float:
    """Return the ratio of the slowest to the fastest run of a method, per BP batch."""
    runs = (run for group in chapter.groups if group.method == method for run in group.counted)
    paces = [pace for run in runs if (pace := _pace(run))]
    return max(paces) / min(paces) if paces else 1.0


def _pace(run: RunRecord) -> float:
    return (seconds_of(run, "bp") + seconds_of(run, "warmup")) / max(1, batches(run, "bp"))
