"""The page's tables as plain values: each cell has its text and its sort key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from adagp.core.intervals import NEVER_NEGATIVE, Interval, interval
from adagp.program.report.modelled import Accelerated, Pipelined
from adagp.program.report.ranking import EqualTime, seconds_text
from adagp.program.report.run_groups import (
    Chapter,
    MethodRuns,
    batches,
    differing_options,
    final_value,
    seconds_of,
    training_seconds,
)
from adagp.program.run.metrics import Metric
from adagp.program.run.record import RunRecord

UNKNOWN = "–"


@dataclass(frozen=True)
class Cell:
    """A text, its sort key (None: always last), and a smaller second line."""

    text: str
    value: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A sortable table; `numeric` marks the columns of numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[bool, ...]


def summary_table(chapter: Chapter) -> Table:
    """Return a row for each method with its final results."""
    more = chapter.metrics[1:]
    columns = ["method", "seeds", "epochs", "BP batches", "GP batches", f"final {chapter.metric.words}"]
    columns += ["training seconds", "GP / BP time of a batch", "cosine", "previous-gradient cosine"]
    columns += [metric.words for metric in more]
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
    """Return the number of runs, with the number of finished ones if some are not."""
    done = sum(run.finished for run in group.runs)
    note = "" if group.unfinished or done == len(group.runs) else f"{done} finished"
    return Cell(f"{len(group.runs)}", len(group.runs), note)


def _final(cell: Cell, runs: MethodRuns | RunRecord) -> Cell:
    """Return the cell of a final value; the value of unfinished runs is only a note."""
    finished = runs.finished if isinstance(runs, RunRecord) else not runs.unfinished
    return cell if finished or cell.value is None else Cell(UNKNOWN, note=f"{cell.text} after {runs.extent}")


def _result_cell(group: MethodRuns, metric: Metric) -> Cell:
    def of_run(run: RunRecord) -> float | None:
        result = run.summary.get(f"test_{metric.name}")
        return float(result) if isinstance(result, int | float) else None

    return value(group.over_runs(of_run, metric.bounds), metric)


def moments_table(moments: Sequence[EqualTime]) -> Table:
    """Return each method's value at the times when some method ends."""
    columns = ["method", *(f"after {seconds_text(moment.seconds)}" for moment in moments)]
    by_group = [
        (words(group.label), *(_reached(moment, group) for moment in moments)) for group, _ in moments[0].values
    ]
    return table(f"Test {moments[0].metric.words} at equal wall-clock time, measured", columns, by_group)


def _reached(moment: EqualTime, group: MethodRuns) -> Cell:
    (values,) = (values for other, values in moment.values if other is group)
    return value(interval(values, moment.metric.bounds), moment.metric)


def options_table(chapter: Chapter) -> list[Table]:
    """Return the options in which the methods' runs differ, if there are any besides the method."""
    configs = {group.label: group.runs[0].config for group in chapter.groups}
    names = [name for name in differing_options(list(configs.values())) if name != "method"]
    if not names:
        return []
    rows = [(words(label), *(_option_cell(config.get(name)) for name in names)) for label, config in configs.items()]
    return [table("Options that differ", ["method", *(name.replace("_", " ") for name in names)], rows)]


def _option_cell(value: object) -> Cell:
    return Cell(UNKNOWN) if value is None else words(f"{value:g}" if isinstance(value, float) else str(value))


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
    columns = ["pipeline", "steps", "steps with backprop alone", "speed-up", "idle", "peak micro-batches kept"]
    rows = [
        (
            words(pipeline.name),
            Cell(f"{pipeline.steps:g}", pipeline.steps),
            Cell(f"{pipeline.baseline_steps:g}", pipeline.baseline_steps),
            Cell(f"{pipeline.speedup:.3f}", pipeline.speedup),
            Cell(f"{pipeline.bubble_share:.1%}", pipeline.bubble_share),
            count(pipeline.peak_activations),
        )
        for pipeline in pipelines
    ]
    return table("Pipelines, modelled", columns, rows)


def table(caption: str, columns: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> Table:
    """Return a table; a column is numeric if no cell of it has a text as its sort key."""
    cells = tuple(rows)
    numeric = tuple(not any(isinstance(row[column].value, str) for row in cells) for column in range(len(columns)))
    return Table(caption, tuple(columns), cells, numeric)


def words(text: str, note: str = "") -> Cell:
    """Return a text cell, sorted without regard to case."""
    return Cell(text, text.lower(), note)


def count(number: int) -> Cell:
    """Return a cell with an integer."""
    return Cell(f"{number:,}", number)


def value(estimate: Interval | None, metric: Metric) -> Cell:
    """Return a cell with a value of a metric, and its interval."""
    if estimate is None:
        return Cell(UNKNOWN)
    low, high = estimate.low, estimate.high
    bounds = "" if low is None or high is None else f"{metric.bare(low)} to {metric.bare(high)}"
    return Cell(metric.text(estimate.mean), estimate.mean, bounds)


def figure(estimate: Interval | None, form: str, *, bounds: bool = True) -> Cell:
    """Return a cell with a number, and its interval if `bounds`."""
    if estimate is None:
        return Cell(UNKNOWN)
    low, high = estimate.low, estimate.high
    note = f"{form.format(low)} to {form.format(high)}" if bounds and low is not None and high is not None else ""
    return Cell(form.format(estimate.mean), estimate.mean, note)


def batch_time_ratio(run: RunRecord) -> float | None:
    """Return the seconds of a GP batch divided by those of a BP batch, warm-up included."""
    predicted, true = batches(run, "gp", "guarded"), batches(run, "bp")
    seconds = seconds_of(run, "bp") + seconds_of(run, "warmup")
    return seconds_of(run, "gp") / predicted / (seconds / true) if predicted and true and seconds else None


def _quality(group: MethodRuns, name: str) -> Interval | None:
    def of_run(run: RunRecord) -> float | None:
        sites = (figures for epoch in run.epochs for figures in epoch.sites.values())
        values = [value for figures in sites if (value := figures.get(name)) is not None]
        return fmean(values) if values else None

    return group.over_runs(of_run)
