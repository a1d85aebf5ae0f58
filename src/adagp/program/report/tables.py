"""The page's tables as plain values: each cell has its text, and what it is sorted by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from adagp.core.intervals import NEVER_NEGATIVE, Interval, interval
from adagp.program.report.modelled import Accelerated, Pipelined
from adagp.program.report.ranking import EqualTime, seconds_text
from adagp.program.report.run_groups import Chapter, MethodRuns, batches, final_value, seconds_of, training_seconds
from adagp.program.run.metrics import Metric
from adagp.program.run.record import RunRecord

UNKNOWN = "–"


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
    more = chapter.metrics[1:]
    columns = ["method", "seeds", "epochs", "BP batches", "GP batches", f"final {chapter.metric.words}"]
    columns += ["training seconds", "GP / BP time of a batch", "cosine", "yardstick", *(one.words for one in more)]
    rows = [
        (*_ends(group, chapter.metric), *(_result_cell(group, metric) for metric in more)) for group in chapter.groups
    ]
    return table("Methods, measured; ranges are 95% intervals over seeds", columns, rows)


def _ends(group: MethodRuns, metric: Metric) -> tuple[Cell, ...]:
    first = group.counted[0] if group.counted else None
    return (
        words(group.label, "not finished" if group.unfinished else ""),
        _seeds(group),
        count(group.length),
        count(batches(first, "bp")) if first else Cell(UNKNOWN),
        count(batches(first, "gp", "guarded")) if first else Cell(UNKNOWN),
        _final(value(group.over_runs(final_value, metric.bounds), metric), group),
        figure(group.over_runs(training_seconds, NEVER_NEGATIVE), "{:,.4g}"),
        figure(group.over_runs(batch_time_ratio), "{:.2f}", bounds=False),
        figure(_quality(group, "cosine"), "{:.3f}", bounds=False),
        figure(_quality(group, "cosine_previous"), "{:.3f}", bounds=False),
    )


def _seeds(group: MethodRuns) -> Cell:
    """Return how many runs there are, and how many of them are finished, if not all are."""
    done = sum(run.finished for run in group.runs)
    note = "" if group.unfinished or done == len(group.runs) else f"{done} finished"
    return Cell(f"{len(group.runs)}", len(group.runs), note)


def _final(cell: Cell, one: MethodRuns | RunRecord) -> Cell:
    """Return the cell of a final value: what a run under way has reached is none, and stands below."""
    over = one.finished if isinstance(one, RunRecord) else not one.unfinished
    return cell if over or cell.value is None else Cell(UNKNOWN, note=f"{cell.text} after {one.extent}")


def _result_cell(group: MethodRuns, metric: Metric) -> Cell:
    """Return what the runs' summaries say of a metric."""

    def of_run(run: RunRecord) -> float | None:
        found = run.summary.get(f"test_{metric.name}")
        return float(found) if isinstance(found, int | float) else None

    return value(group.over_runs(of_run, metric.bounds), metric)


def moments_table(moments: Sequence[EqualTime]) -> Table:
    """Return each group's value at the moments when some group ends."""
    columns = ["method", *(f"after {seconds_text(moment.seconds)}" for moment in moments)]
    by_group = [
        (words(group.label), *(_reached(moment, group) for moment in moments)) for group, _ in moments[0].values
    ]
    return table(f"Test {moments[0].metric.words} at equal wall-clock, measured", columns, by_group)


def _reached(moment: EqualTime, group: MethodRuns) -> Cell:
    (found,) = (values for one, values in moment.values if one is group)
    return value(interval(found, moment.metric.bounds), moment.metric)


def runs_table(chapter: Chapter) -> Table:
    """Return a row for each run."""
    columns = ["run", "method", "seed", "epochs", f"final {chapter.metric.words}", "training seconds", "state"]
    rows = [_run(run, group) for group in chapter.groups for run in group.runs]
    return table("Every run, measured", columns, rows)


def _run(run: RunRecord, group: MethodRuns) -> tuple[Cell, ...]:
    final, seconds, seed = final_value(run), training_seconds(run), run.config.get("seed")
    return (
        words(run.name),
        words(group.label),
        count(seed) if isinstance(seed, int) else Cell(UNKNOWN),
        count(len(run.epochs)),
        _final(value(interval([] if final is None else [final]), run.metric), run),
        figure(interval([] if seconds is None else [seconds]), "{:,.4g}"),
        words("finished" if run.finished else "not finished" if run.epochs else "incomplete: no epoch"),
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


def value(one: Interval | None, metric: Metric) -> Cell:
    """Return a cell with a value of a metric, and its interval."""
    if one is None:
        return Cell(UNKNOWN)
    bounds = "" if one.low is None or one.high is None else f"{metric.bare(one.low)} to {metric.bare(one.high)}"
    return Cell(metric.text(one.mean), one.mean, bounds)


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


def _quality(group: MethodRuns, name: str) -> Interval | None:
    def of_run(run: RunRecord) -> float | None:
        values = [value for epoch in run.epochs for value in epoch.over_sites(name)]
        return mean(values) if values else None

    return group.over_runs(of_run)
