"""The results of a comparison as tables for the terminal, Markdown, notebooks and CSV; a finished comparison read back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from adagp.core.escape import escaped, html_table
from adagp.core.plan import Phase
from adagp.errors import RunError
from adagp.program.compare.alignment import FIGURES
from adagp.program.compare.comparison import BATCHES, MODELLED, SECONDS
from adagp.program.compare.grid import BATCH_SIZE, grid_text, upgraded_tuning
from adagp.program.compare.methods import BACKPROP
from adagp.program.compare.verdict import (
    batch_size_note,
    headline,
    method_batch_sizes,
    read_report,
    total_samples,
    verdict_lines,
)
from adagp.program.compare.worth_map import MapPoint
from adagp.program.run.metrics import Metric, read_metrics

Record = dict[str, Any]
NONE = "-"


@dataclass(frozen=True)
class Sheet:
    """A table: title, column headings, rows of text, and a note below."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def sheets(document: Record) -> list[Sheet]:
    """Return the tables of a comparison: results and costs of each regime, then the gradients."""
    tables: list[Sheet] = [_tuned(document)] if document.get("tuning") else []
    for regime, content in document["regimes"].items():
        tables += [_results(document, regime, content["methods"]), _costs(document, regime, content["methods"])]
    first = _first_regime(document)
    if any(record["ceiling_minibatch"] is not None for record in first.values()):
        tables.append(_gradients(document, first))
    return tables + worth_sheets(document["worth"]) if document.get("worth") else tables


def worth_sheets(worth: Record) -> list[Sheet]:
    """Return the tables of the break-even: the worth of a GP batch, and its cost on each platform."""
    methods = worth["methods"]
    summary: Columns = {
        "worth": lambda row: _number(row["worth"], 2),
        "95% interval": lambda row: (
            " to ".join(_number(end, 2) for end in row["interval"])
            if any(end is not None for end in row["interval"])
            else NONE
        ),
        "regime": lambda row: row["regime"],
        "BP": lambda row: f"{row['bp_batches']:.0f}",
        "GP": lambda row: f"{row['gp_batches']:.0f}",
        "beyond the curve": lambda row: row["beyond_curve"] or NONE,
    }
    points = ", ".join(f"{point['batches']}" for point in worth["curve"])
    note = (
        f"The worth of a GP batch in batches of backprop: where a method's {worth['metric']} lies on backprop's curve (runs of "
        f"{points} batches). The regime is the one with the narrowest interval. {NONE}: beyond the curve, or one seed. "
        f"{_worth_sizes(worth)}{batch_size_note(worth)}"
    )
    tables = [_sheet("what a GP batch is worth", summary, methods, note)]
    for name, method in methods.items():
        columns: Columns = {
            "price": lambda row: _number(row["price"], 3),
            "overhead": lambda row: _number(row["overhead"], 3),
            "break-even": lambda row: _number(row["break_even"], 3),
            "price without bubbles": lambda row: _number(row["price_without_bubbles"], 3),
            "verdict": lambda row: row["verdict"],
        }
        rows = tuple(
            (platform, *(column(row) for column in columns.values())) for platform, row in method["platforms"].items()
        )
        details = "; ".join(f"{platform}: {row['details']}" for platform, row in method["platforms"].items())
        note = (
            "In batches of plain backprop: the price of a GP batch, the overhead of learning in a BP batch, and the worth "
            "above which the method pays; only cpu is measured. Backprop has the best exact pipeline; a pipeline without "
            f"bubbles is hypothetical. {details}."
        )
        tables.append(Sheet(f"where {name} pays", ("platform", *columns), rows, note))
    return tables


def map_sheets(points: Sequence[MapPoint]) -> list[Sheet]:
    """Return the tables of the map: for each network, batch size and method the platforms, and on which side each is."""
    columns: dict[str, Callable[[MapPoint], str]] = {
        "platform": lambda point: point.platform,
        "price": lambda point: _number(point.price, 3),
        "break-even": lambda point: _number(point.break_even, 3),
        "step-limited": lambda point: point.step_limited or NONE,
        "cost at equal noise": lambda point: _number(point.noise_limited_cost, 2),
        "noise-limited": lambda point: point.noise_limited or NONE,
    }
    series: dict[str, list[MapPoint]] = {}
    for point in points:
        series.setdefault(point.series, []).append(point)
    return [
        Sheet(
            title,
            tuple(columns),
            tuple(tuple(column(point) for column in columns.values()) for point in own),
            f"{_measured(own[0])}{MAP_NOTE if own is list(series.values())[-1] else ''}",
        )
        for title, own in series.items()
    ]


MAP_NOTE = (
    " In batches of plain backprop. Step-limited (large batches, many devices): a GP batch pays where its worth is above the "
    "break-even, which is its price and the overhead of learning. Noise-limited (small batches): prediction pays where rho^2, "
    "the squared correlation of single samples' predicted and true gradients, is above the price; else backprop with a smaller "
    "batch is better. cost at equal noise: with the best share of true gradients; 1.00 is backprop."
)


def _measured(point: MapPoint) -> str:
    """Return what was measured of a method, whatever the platform."""
    parts = []
    if point.worth is not None:
        ends = " to ".join(_number(end, 2) for end in point.worth_interval)
        known = None not in point.worth_interval
        parts.append(f"a GP batch is worth {point.worth:.2f}{f' ({ends})' if known else ', without an interval'}")
    if point.rho_squared is not None:
        parts.append(f"rho^2 {point.rho_squared:.2f}")
    if point.noise_scale is not None:
        parts.append(f"gradient noise scale {point.noise_scale:,.0f} samples")
    return f"Measured: {', '.join(parts)}."


def _worth_sizes(worth: Record) -> str:
    sizes = worth.get("batch_sizes") or {}
    if len(set(sizes.values())) < 2:
        return ""
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return f"Batch sizes: {listed}; worth and prices are those of equally many samples. "


def _first_regime(document: Record) -> dict[str, Record]:
    """Return the methods of the first regime, for figures that are the same in all."""
    methods: dict[str, Record] = next(iter(document["regimes"].values()))["methods"]
    return methods


Columns = dict[str, Callable[[Record], str]]


def _sheet(title: str, columns: Columns, methods: Mapping[str, Record], note: str) -> Sheet:
    rows = tuple((name, *(column(record) for column in columns.values())) for name, record in methods.items())
    return Sheet(title, ("method", *columns), rows, note)


def _results(document: Record, regime: str, methods: Mapping[str, Record]) -> Sheet:
    metric = read_metrics(document)[0]
    columns: Columns = {
        metric.heading: lambda row: _interval(row, metric.name, metric.bare),
        "ahead of bp": lambda row: (
            _interval(row, "ahead", metric.bare) if "ahead_mean" in row else NONE
        ),  # missing in reports of earlier versions
        "gap closed": lambda row: (  # a share of a gap that may be 0 can be anything
            _percent(row["gap_closed"]) if row["gap_clear"] or row["gap_closed"] is None else "?"
        ),
        **({"batch size": lambda row: f"{row['batch_size']}"} if method_batch_sizes(document) else {}),
        "batches": lambda row: f"{row['batches']:.0f}",
        "GP": lambda row: f"{row['gp_batches'] + row['guarded_batches']:.0f}",
        "seconds": lambda row: _interval(row, "seconds", "{:.1f}".format),
    }
    if regime in MODELLED:
        unit = document["platforms"][regime]["unit"]
        columns[f"modelled {unit}"] = lambda row: _large(row["modelled_cost"])
    else:
        columns["calibrated"] = lambda row: _number(row["calibrated_seconds"], 1)
    note = (
        f"{_runs(methods)} ± is the 95% interval (Student's t) over seeds. ahead of bp: paired by seed. gap closed: share of "
        f"the {metric.words} gap between skip and bp; ?: the gap is not significant. GP: number of GP batches. seconds: "
        f"measured, training and data loading without evaluation, {document['jobs']} run{'s' * (document['jobs'] != 1)} at a "
        "time with one thread each; "
        "calibrated: computed from single batches, timed with nothing else running."
    )
    if regime in MODELLED:
        note += f" {_platform_note(document['platforms'][regime], document.get('reference', BACKPROP))}"
    if regime != BATCHES:
        note += " The learning rate decays to 0 in each run."
    if method_batch_sizes(document):
        note += f" {batch_size_note(document)}"
    return _sheet(f"{document['model']} on {document['dataset']}, {_title(document, regime)}", columns, methods, note)


def _title(document: Record, regime: str) -> str:
    if regime == BATCHES:
        if samples := total_samples(document):
            return f"equal samples: {samples:,} each"
        return f"equal batches: {document['batches']} each"
    if regime == SECONDS:
        return f"equal seconds: {_number(document['budget_seconds'], 1)} as calibrated"
    platform = document["platforms"][regime]
    return f"equal {platform['unit']} on the {regime} {platform['platform']}: {_large(platform['budget'])}, modelled"


def _platform_note(platform: Record, reference: str) -> str:
    plain = platform["methods"][reference]
    unit = plain["costs"][BATCHES] / sum(kind["batches"] for kind in plain["kinds"])
    parts = _relative_costs(platform, plain, unit)
    differ = len({method.get("batch_size") for method in platform["methods"].values()}) > 1
    samples = " with as many samples" if differ else ""
    note = f"A batch costs, in batches of plain backprop{samples}: {'; '.join(parts)}." if parts else ""
    if "bound" in plain:
        note += f" {_pipeline_note(platform, plain['bound'] / unit)}"
    if "exchanged_bytes" in plain:
        note += f" {_exchange_note(platform)}"
    return note


def _relative_costs(platform: Record, plain: Record, unit: float) -> list[str]:
    """Return for each other method what its batches cost, given the cost `unit` of a batch of plain backprop."""
    size = plain.get("batch_size")  # missing in reports of earlier versions, as all are equal there
    parts = []
    for name, method in platform["methods"].items():
        if method is not plain:
            batch_unit = unit * method["batch_size"] / size if size else unit
            parts.append(f"{name} {', '.join(_kind(kind, batch_unit) for kind in method['kinds'])}")
    return parts


def _pipeline_note(platform: Record, bound: float) -> str:
    """Return the methods' pipeline schedules and peak activations; `bound` is what a BP batch costs without bubbles."""
    used = ", ".join(f"{name} {method['schedule']}" for name, method in platform["methods"].items())
    peaks = ", ".join(f"{name} {method['kept_bytes'] / 1e6:.2f} MB" for name, method in platform["methods"].items())
    return (
        f"Pipelines: {used}. Without bubbles a batch of plain backprop would cost {bound:.3f}. "
        f"Peak activations on a device: {peaks}."
    )


def _exchange_note(platform: Record) -> str:
    """Return what each method exchanges on a cluster, and which share of its cost that takes."""
    parts = []
    for name, method in platform["methods"].items():
        amounts = " and ".join(
            f"{method['exchanged_bytes'][kind['phase']] / 1e6:.2f} MB ({kind['phase'].upper()})"
            for kind in method["kinds"]
            if kind["phase"] in method["exchanged_bytes"]
        )
        waiting = 1 - method["compute_cost"] / next(reversed(method["costs"].values()))
        apart = method["cost_without_overlap"] / next(reversed(method["costs"].values()))
        parts.append(
            f"{name} {method['samples_per_device']} samples per device, {amounts} exchanged per batch, {waiting:.0%} of its "
            f"cost (without overlap it would be {apart:.2f} times the cost)"
        )
    return "; ".join(parts) + "."


def _kind(kind: Record, unit: float) -> str:
    return f"{kind['phase'].upper()} {kind['cost'] / unit:.3f}"


def _tuned(document: Record) -> Sheet:
    """Return the table of the tuning: the values of the first option are columns, those of the others rows."""
    metric = read_metrics(document)[0]
    tuning = upgraded_tuning(document["tuning"], metric.name)
    first = next(iter(tuning["options"]))
    heads = ("method", *(f"{first} {value:g}" for value in tuning["options"][first]), "picked", "batches")
    rows = []
    for name, method in tuning["methods"].items():
        groups: dict[str, list[Record]] = {}
        for trial in method["trials"]:
            others = grid_text({option: value for option, value in trial["values"].items() if option != first})
            groups.setdefault(f"{name}, {others}" if others else name, []).append(trial)
        columns = tuning["options"][first]
        rows += [_tuned_row(title, method, trials, columns, metric) for title, trials in groups.items()]
    regime = tuning["regime"]
    cost = f"cost in the regime {regime}"
    if regime == BATCHES:
        cost = "samples" if BATCH_SIZE in tuning["options"] else "batches"
    note = (
        f"{metric.words.capitalize()} on a held-out {tuning['validation']:.0%} of the training data; {_seeds(tuning['seeds'])} "
        f"that no other run has; equal {cost}. *: the best value is the smallest or largest one tried. {NONE}: the run failed "
        "or diverged, or its warm-up alone costs more."
    )
    return Sheet(f"tuning: each method's own {' and '.join(tuning['options'])}", heads, tuple(rows), note)


def _seeds(number: int) -> str:
    return f"{number} seed{'s' * (number != 1)}"


def _tuned_row(
    name: str, method: Record, trials: Sequence[Record], values: Sequence[float], metric: Metric
) -> tuple[str, ...]:
    """Return the results of a method with each of `values`, and the picked values if they are among them."""
    picked = method["picked"] if any(trial["values"] == method["picked"] for trial in trials) else {}
    marks = {option: f"{value:g}{'*' * (option in method['at_the_edge'])}" for option, value in picked.items()}
    text = ", ".join(marks.values() if len(marks) == 1 else (f"{option} {mark}" for option, mark in marks.items()))
    results = [_of(trial[metric.name], metric.bare) for trial in trials]
    lengths = sorted({trial["batches"] for trial in trials})
    blanks = [NONE] * (len(values) - len(results))  # a method without the first option has one result
    return (name, *results, *blanks, text or NONE, " to ".join(map(str, dict.fromkeys((lengths[0], lengths[-1])))))


def _costs(document: Record, regime: str, methods: Mapping[str, Record]) -> Sheet:
    kinds = [*map(str, Phase), "data"]
    columns: Columns = {kind: lambda row, kind=kind: f"{row['seconds_by_phase'][kind]:.2f}" for kind in kinds}  # type: ignore[misc]
    columns["peak MB"] = lambda row: _interval(_named(row, "peak_memory"), "value", _megabytes)
    note = (
        "Seconds by phase, means over seeds: bp is backprop after the warm-up, data is data loading. peak MB: peak resident "
        "memory of a run's process, with Python, torch and the data set."
    )
    if (target := document["target"]) is not None:
        metric = read_metrics(document)[0]
        columns[f"reach {metric.scale * target:g}{metric.suffix}"] = lambda row: _percent(row["target_share"])
        columns["after s"] = lambda row: _interval(row, "seconds_to_target", "{:.1f}".format)
        note += " The target is checked at the end of each epoch; seconds are means over the runs that reach it."
    what = document["platforms"][regime]["unit"] + f" ({regime})" if regime in MODELLED else regime
    return _sheet(f"costs at equal {what}, measured here", columns, methods, note)


def _gradients(document: Record, methods: Mapping[str, Record]) -> Sheet:
    heads = ("cosine", "norm", "cosine, large", "norm, large", "ceiling", "ceiling, large")
    columns: Columns = {
        head: lambda row, figure=figure: _interval(_named(row, figure), "value", "{:.3f}".format)  # type: ignore[misc]
        for head, figure in zip(heads, FIGURES, strict=True)
    }
    if any(row.get("noise_scale") is not None for row in methods.values()):  # missing in reports of earlier versions
        columns["rho^2"] = lambda row: _interval(_named(row, "rho_squared"), "value", "{:.2f}".format)
        columns["noise scale"] = lambda row: _interval(_named(row, "noise_scale"), "value", "{:,.0f}".format)
    alignment = document["alignment"]
    note = (
        f"Means over sites and {alignment['points']} batches along a run of {document['batches']} batches, over "
        f"{_seeds(alignment['seeds'])}. cosine, norm (ratio): the method's gradient against the true one of the same "
        f"minibatch; large: against that of {alignment['samples']} samples. ceiling: the cosine of the true gradients of two "
        "minibatches, and of a minibatch and the large batch. rho^2: squared correlation of one sample's predicted and true "
        "gradient; noise scale: the batch size above which larger batches stop paying, in samples; both of all these weights "
        "together. bp is measured at BP batches. "
        f"{NONE}: no gradient, or a zero gradient."
    )
    return _sheet("gradients of GP batches against true gradients", columns, methods, note)


def _named(record: Record, figure: str) -> Record:
    """Return a figure stored as NAME, NAME_low, NAME_high under the names that `_interval` reads."""
    return {"value_mean": record[figure], "value_low": record[f"{figure}_low"], "value_high": record[f"{figure}_high"]}


def _runs(methods: Mapping[str, Record]) -> str:
    counts = sorted({record["runs"] for record in methods.values()})
    if not counts:
        return "No run is finished."
    return f"n = {counts[0]}." if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}: some runs are missing."


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _large(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _of(value: float | None, form: Callable[[float], str]) -> str:
    return NONE if value is None else form(value)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"


def _megabytes(memory: float) -> str:
    return f"{1e-6 * memory:.0f}"


def _interval(record: Mapping[str, Any], name: str, form: Callable[[float], str]) -> str:
    """Return `mean ± half width`, or the mean alone without an interval. `form` formats a number.

    An interval that is cut off at a bound is not symmetric: both ends are written.
    """
    centre, low, high = (record[f"{name}_{end}"] for end in ("mean", "low", "high"))
    if centre is None:
        return NONE
    if low is None:
        return form(centre)
    if isclose(high - centre, centre - low, rel_tol=1e-6, abs_tol=1e-12):
        return f"{form(centre)} ± {form((high - low) / 2)}"
    return f"{form(centre)} ({form(low)} to {form(high)})"


def markdown(document: Record) -> str:
    """Return all tables as a Markdown document."""
    parts = [f"# {headline(document)}"]
    parts += [" ".join(lines)] if (lines := verdict_lines(document)) else []
    for sheet in sheets(document):
        lines = [f"## {sheet.title}", "", _line(sheet.heads), _line(["---", *("---:" for _ in sheet.heads[1:])])]
        parts.append("\n".join([*lines, *map(_line, sheet.rows), "", sheet.note]))
    if document["failed"]:
        parts.append("\n".join(["## Failed", "", *(f"- {run['name']}: {run['reason']}" for run in document["failed"])]))
    parts.append(f"Repeat with: `{document['command']}`")
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def method_rows(document: Record) -> list[Record]:
    """Return one row per method and regime."""
    return [
        {"regime": regime, "name": name, **{key: value for key, value in method.items() if key != "sites"}}
        for regime, content in document["regimes"].items()
        for name, method in content["methods"].items()
    ]


def site_rows(document: Record) -> list[Record]:
    """Return one row per method and site."""
    first = _first_regime(document)
    return [
        {"name": name, "site": site, **figures}
        for name, method in first.items()
        for site, figures in method["sites"].items()
    ]


@dataclass(frozen=True)
class FinishedComparison:
    """The results of `adagp compare`: `document` is the content of report.json, `sheets` are the tables."""

    document: Record
    sheets: tuple[Sheet, ...]

    def __str__(self) -> str:
        return markdown(self.document)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the tables and the failed runs as HTML, for notebooks."""
        failed = [f"failed: {run['name']}: {run['reason']}" for run in self.document["failed"]]
        tables = [html_table(sheet.title, sheet.heads, sheet.rows, [sheet.note]) for sheet in self.sheets]
        return "".join([*tables, html_table("Failed", ("run",), [[text] for text in failed]) if failed else ""])


def read_comparison(folder: Path | str) -> FinishedComparison:
    """Read the results of `adagp compare --out FOLDER`."""
    document = read_report(Path(folder))
    try:
        return FinishedComparison(document, tuple(sheets(document)))
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise RunError(f"'{escaped(folder)}' holds a report.json that is not the report of a comparison.") from None
