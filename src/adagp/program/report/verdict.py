"""Who wins, at equal batches and at equal wall-clock, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.core.intervals import Interval, difference
from adagp.program.report.groups import Chapter, batches, seconds_of
from adagp.program.report.standings import Standing, equal_batches, equal_time
from adagp.program.run.metrics import SHARE, Metric
from adagp.program.run.record import RunRecord

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
