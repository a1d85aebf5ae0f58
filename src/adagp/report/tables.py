"""The page's tables as plain values: each cell has its text, and what it is sorted by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from adagp.report.collect import RunRecord
from adagp.report.groups import Chapter, Group, batches, final_accuracy, seconds_of, training_seconds
from adagp.report.modelled import Accelerated, Pipelined
from adagp.report.verdict import Moment, seconds_text
from adagp.statistics import Interval, interval

UNKNOWN = "–"
EXTRAS = {"test_bleu": ("BLEU", "{:.2f}"), "test_map50": ("mAP at IoU 0.5", "{:.4f}")}
"""Results that some tasks have besides the accuracy."""


@dataclass(frozen=True)
class Cell:
    """A text, what it is sorted by (None: always last), and a smaller second line."""

    text: str
    value: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A sortable table; `numeric` says which columns hold numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[bool, ...]


def summary_table(chapter: Chapter) -> Table:
    """Return a row for each group: what it is, and how it ended."""
    extras = [name for name in EXTRAS if any(name in run.summary for group in chapter.groups for run in group.runs)]
    columns = ["method", "seeds", "epochs", "BP batches", "GP batches", "final accuracy", "training seconds"]
    columns += ["GP / BP time of a batch", "cosine", "yardstick", *(EXTRAS[name][0] for name in extras)]
    rows = [(*_ends(group), *(_extra_cell(group, name) for name in extras)) for group in chapter.groups]
    return table("Methods, measured; ranges are 95% intervals over seeds", columns, rows)


def _ends(group: Group) -> tuple[Cell, ...]:
    first = group.counted[0] if group.counted else None
    return (
        words(group.label, "not finished" if group.unfinished else ""),
        count(len(group.runs)),
        count(group.length),
        count(batches(first, "bp")) if first else Cell(UNKNOWN),
        count(batches(first, "gp", "guarded")) if first else Cell(UNKNOWN),
        share(group.over_runs(final_accuracy)),
        figure(group.over_runs(training_seconds), "{:,.4g}"),
        figure(group.over_runs(batch_time_ratio), "{:.2f}", bounds=False),
        figure(_quality(group, "cosine"), "{:.3f}", bounds=False),
        figure(_quality(group, "cosine_previous"), "{:.3f}", bounds=False),
    )


def _extra_cell(group: Group, name: str) -> Cell:
    def of_run(run: RunRecord) -> float | None:
        value = run.summary.get(name)
        return float(value) if isinstance(value, int | float) else None

    return figure(group.over_runs(of_run), EXTRAS[name][1])


def moments_table(moments: Sequence[Moment]) -> Table:
    """Return each group's accuracy at the moments when some group ends."""
    columns = ["method", *(f"after {seconds_text(moment.seconds)}" for moment in moments)]
    by_group = [
        (words(group.label), *(share(interval(dict(_named(moment))[group.label])) for moment in moments))
        for group, _ in moments[0].accuracies
    ]
    return table("Test accuracy at equal wall-clock, measured", columns, by_group)


def _named(moment: Moment) -> Iterable[tuple[str, tuple[float, ...]]]:
    return ((group.label, values) for group, values in moment.accuracies)


def runs_table(chapter: Chapter) -> Table:
    """Return a row for each run."""
    columns = ["run", "method", "seed", "epochs", "final accuracy", "training seconds", "state"]
    rows = [_run(run, group) for group in chapter.groups for run in group.runs]
    return table("Every run, measured", columns, rows)


def _run(run: RunRecord, group: Group) -> tuple[Cell, ...]:
    accuracy, seconds, seed = final_accuracy(run), training_seconds(run), run.config.get("seed")
    return (
        words(run.name),
        words(group.label),
        count(seed) if isinstance(seed, int) else Cell(UNKNOWN),
        count(len(run.epochs)),
        share(interval([] if accuracy is None else [accuracy])),
        figure(interval([] if seconds is None else [seconds]), "{:,.4g}"),
        words("finished" if run.finished else "not finished"),
    )


def designs_table(modelled: Accelerated) -> Table:
    """Return a row for each simulated design."""
    columns = ["method", "design", "cycles", "seconds at 200 MHz", "speed-up", "joules", "energy saved"]
    rows = [
        (
            words(label),
            words(design),
            Cell(f"{row['cycles']:.4g}", row["cycles"]),
            Cell(f"{row['seconds']:.4g}", row["seconds"]),
            Cell(f"{row['speedup']:.3f}", row["speedup"]),
            Cell(f"{row['energy_joules']:.4g}", row["energy_joules"]),
            Cell(f"{row['energy_saving']:.1%}", row["energy_saving"]),
        )
        for label, report in modelled.reports.items()
        for design, row in report["designs"].items()
    ]
    return table("The accelerator's designs, modelled", columns, rows)


def pipelines_table(pipelines: Iterable[Pipelined]) -> Table:
    """Return a row for each pipeline."""
    columns = ["pipeline", "steps", "steps with backprop alone", "speed-up", "idle", "micro-batches kept at most"]
    rows = [
        (
            words(one.name),
            Cell(f"{one.steps:g}", one.steps),
            Cell(f"{one.baseline_steps:g}", one.baseline_steps),
            Cell(f"{one.speedup:.3f}", one.speedup),
            Cell(f"{one.bubble_share:.1%}", one.bubble_share),
            count(one.peak_activations),
        )
        for one in pipelines
    ]
    return table("Pipelines, modelled", columns, rows)


def table(caption: str, columns: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> Table:
    """Return a table; a column is numeric if no cell of it is sorted by words."""
    fixed = tuple(rows)
    numeric = tuple(not any(isinstance(row[place].value, str) for row in fixed) for place in range(len(columns)))
    return Table(caption, tuple(columns), fixed, numeric)


def words(text: str, note: str = "") -> Cell:
    """Return a cell of words."""
    return Cell(text, text.lower(), note)


def count(number: int) -> Cell:
    """Return a cell with a whole number."""
    return Cell(f"{number:,}", number)


def share(one: Interval | None) -> Cell:
    """Return a cell with an accuracy in per cent, and its interval."""
    if one is None:
        return Cell(UNKNOWN)
    bounds = "" if one.low is None or one.high is None else f"{100 * one.low:.2f} to {100 * one.high:.2f}"
    return Cell(f"{one.mean:.2%}", one.mean, bounds)


def figure(one: Interval | None, form: str, *, bounds: bool = True) -> Cell:
    """Return a cell with a number, and its interval if wanted."""
    if one is None:
        return Cell(UNKNOWN)
    known = bounds and one.low is not None and one.high is not None
    return Cell(form.format(one.mean), one.mean, f"{form.format(one.low)} to {form.format(one.high)}" if known else "")


def batch_time_ratio(run: RunRecord) -> float | None:
    """Return the seconds of a GP batch over those of a BP batch, the warm-up among the latter."""
    predicted, true = batches(run, "gp", "guarded"), batches(run, "bp")
    seconds = seconds_of(run, "bp") + seconds_of(run, "warmup")
    return seconds_of(run, "gp") / predicted / (seconds / true) if predicted and true and seconds else None


def _quality(group: Group, name: str) -> Interval | None:
    def of_run(run: RunRecord) -> float | None:
        known = [site.get(name) for epoch in run.epochs for site in epoch.sites.values()]
        values = [value for value in known if value is not None]
        return mean(values) if values else None

    return group.over_runs(of_run)
