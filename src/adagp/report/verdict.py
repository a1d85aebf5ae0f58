"""Who wins at equal wall-clock: every method is read off at the time when the shortest ends."""

from dataclasses import dataclass

from adagp.report.collect import RunRecord
from adagp.report.groups import Chapter, Group, batches, seconds_of
from adagp.report.intervals import Interval, difference, interval

SAME = 0.05
"""Two ends that differ by less than this share count as one moment."""
MOST_MOMENTS = 4
UNEVEN = 1.5
"""How many times slower the same work may be in another run before the page warns."""


@dataclass(frozen=True)
class Moment:
    """A stretch of training seconds, and who ends there. `accuracies` has for each group one value a run."""

    seconds: float
    ends: Group
    accuracies: tuple[tuple[Group, tuple[float, ...]], ...]

    @property
    def ranking(self) -> list[tuple[Group, tuple[float, ...], Interval]]:
        """Groups that have an accuracy by then, best mean first."""
        known = [(group, values, one) for group, values in self.accuracies if (one := interval(values)) is not None]
        return sorted(known, key=lambda entry: -entry[2].mean)


def moments(chapter: Chapter) -> list[Moment]:
    """Return the ends of the groups in the order of time, those close together once, at most a few."""
    ends = sorted(((end, group) for group in chapter.groups if (end := _end(group))), key=lambda entry: entry[0])
    chosen: list[tuple[float, Group]] = []
    for end, group in ends:
        if not chosen or end > chosen[-1][0] * (1 + SAME):
            chosen.append((end, group))
    kept = chosen if len(chosen) <= MOST_MOMENTS else [*chosen[: MOST_MOMENTS - 1], chosen[-1]]
    return [_moment(end, group, chapter) for end, group in kept]


def accuracy_at(run: RunRecord, seconds: float) -> float | None:
    """Return the test accuracy of the last epoch that ended within `seconds` of training."""
    reached = [epoch for epoch, clock in zip(run.epochs, run.clock, strict=True) if clock <= seconds]
    return reached[-1].figures["test_accuracy"] if reached else None


def _end(group: Group) -> float | None:
    """Return when the last of the group's runs ends, in training seconds."""
    return max((run.clock[-1] for run in group.counted), default=None)


def _moment(seconds: float, ends: Group, chapter: Chapter) -> Moment:
    def values(group: Group) -> tuple[float, ...]:
        found = (accuracy_at(run, seconds) for run in group.counted)
        return tuple(value for value in found if value is not None)

    return Moment(seconds, ends, tuple((group, values(group)) for group in chapter.groups))


def verdict(chapter: Chapter) -> list[str]:
    """Say in two or three sentences who wins at equal wall-clock."""
    found = moments(chapter)
    ranking = found[0].ranking if found else []
    if not ranking:
        return ["No run has a finished epoch with an accuracy yet: there is nothing to compare."]
    if len(ranking) == 1:
        return [f"Only {ranking[0][0].label} is here: {spoken(ranking[0][2])}. A comparison needs a second method."]
    (first, first_values, best), (second, second_values, next_best) = ranking[:2]
    moment = found[0]
    head = (
        f"After {moment.seconds:,.3g} s of training each, when {moment.ends.label} ends, {first.label} leads with "
        f"{spoken(best)}; {second.label} follows with {spoken(next_best)}."
    )
    return [head, _judge(first, second, difference(first_values, second_values)), *_cautions(chapter)]


def spoken(one: Interval) -> str:
    """Return an accuracy with its interval in words."""
    if one.low is None or one.high is None:
        return f"{one.mean:.2%} (one seed)"
    return f"{one.mean:.2%} (95% interval {100 * one.low:.2f} to {100 * one.high:.2f}, {one.count} seeds)"


def _judge(first: Group, second: Group, gap: Interval) -> str:
    points = f"{100 * gap.mean:.2f} points"
    if gap.low is None or gap.high is None:
        return f"The difference is {points}; without several seeds of both there is no telling it from chance."
    bounds = f"{points} (95% interval {100 * gap.low:.2f} to {100 * gap.high:.2f})"
    if gap.low > 0:
        return f"{first.label} wins: the difference is {bounds}."
    return f"No clear winner: {first.label} is ahead of {second.label} by {bounds}, which includes none at all."


def _cautions(chapter: Chapter) -> list[str]:
    unfinished = [group.label for group in chapter.groups if group.unfinished]
    words = [f"Not finished yet, counted as far as they are: {', '.join(unfinished)}."] if unfinished else []
    for method in dict.fromkeys(group.method for group in chapter.groups):
        paces = [
            pace for group in chapter.groups if group.method == method for run in group.counted if (pace := _pace(run))
        ]
        if paces and max(paces) > UNEVEN * min(paces):
            words.append(
                f"Mind the clock: a BP batch of {method} took {max(paces) / min(paces):.1f} times as long in one run as in "
                "another, so the machine was not equally free and seconds cannot be compared well."
            )
    return words


def _pace(run: RunRecord) -> float:
    """Return the mean seconds of a BP batch, the warm-up among them; 0 if there was none."""
    return (seconds_of(run, "bp") + seconds_of(run, "warmup")) / max(1, batches(run, "bp"))
