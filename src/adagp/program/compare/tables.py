"""The figures of a comparison for people: tables for the terminal and for Markdown from the same cells; and CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from adagp.core.escape import shown
from adagp.core.html_tables import html_table
from adagp.core.plan import Phase
from adagp.errors import RunError
from adagp.program.compare.alignment import FIGURES
from adagp.program.compare.comparison import BATCHES, MODELLED, SECONDS
from adagp.program.compare.methods import BACKPROP
from adagp.program.run.folder import RunFolder
from adagp.program.run.metrics import read_metrics

Record = dict[str, Any]
NONE = "-"


@dataclass(frozen=True)
class Sheet:
    """A table: a title, the heads of its columns, its rows as text, and what there is to say below it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def sheets(document: Record) -> list[Sheet]:
    """Return the tables of a comparison: results and costs of each regime, then the gradients."""
    found: list[Sheet] = [_tuned(document)] if document.get("tuning") else []
    for regime, content in document["regimes"].items():
        found += [_results(document, regime, content["methods"]), _costs(document, regime, content["methods"])]
    first = _first_regime(document)
    if any(record["ceiling_minibatch"] is not None for record in first.values()):
        found.append(_gradients(document, first))
    return found + worth_sheets(document["worth"]) if document.get("worth") else found


def worth_sheets(worth: Record) -> list[Sheet]:
    """Return the break-even of a comparison: what a GP batch is worth, and what it costs on each platform."""
    methods = worth["methods"]
    summary: Columns = {
        "worth": lambda one: _number(one["worth"], 2),
        "95% interval": lambda one: " to ".join(_number(end, 2) for end in one["interval"]),
        "regime": lambda one: one["regime"],
        "BP": lambda one: f"{one['bp_batches']:.0f}",
        "GP": lambda one: f"{one['gp_batches']:.0f}",
        "beyond the curve": lambda one: one["beyond_curve"] or NONE,
    }
    points = ", ".join(f"{one['batches']}" for one in worth["curve"])
    note = (
        f"A GP batch's worth in batches by backprop, from where a method's {worth['metric']} stands on backprop's curve (runs "
        f"of {points} batches). The regime is the one that tells it best. {NONE}: beyond the curve, or one seed."
    )
    found = [_sheet("what a GP batch is worth", summary, methods, note)]
    for name, one in methods.items():
        columns: Columns = {
            "price": lambda row: _number(row["price"], 3),
            "overhead": lambda row: _number(row["overhead"], 3),
            "break-even": lambda row: _number(row["break_even"], 3),
            "price without bubbles": lambda row: _number(row["price_without_bubbles"], 3),
            "verdict": lambda row: row["verdict"],
        }
        rows = tuple(
            (platform, *(column(row) for column in columns.values())) for platform, row in one["platforms"].items()
        )
        details = "; ".join(f"{platform}: {row['details']}" for platform, row in one["platforms"].items())
        note = (
            "In batches by plain backprop: what a GP batch costs, what learning adds to a BP batch, and the worth from which "
            "on the method pays; only cpu is measured. Backprop has the best exact pipeline; without bubbles, one that is not "
            f"known. {details}."
        )
        found.append(Sheet(f"where {name} pays", ("platform", *columns), rows, note))
    return found


def _first_regime(document: Record) -> dict[str, Record]:
    """Return the methods of the first regime, for figures that do not depend on it."""
    methods: dict[str, Record] = next(iter(document["regimes"].values()))["methods"]
    return methods


Columns = dict[str, Callable[[Record], str]]


def _sheet(title: str, columns: Columns, methods: Mapping[str, Record], note: str) -> Sheet:
    rows = tuple((name, *(column(record) for column in columns.values())) for name, record in methods.items())
    return Sheet(title, ("method", *columns), rows, note)


def _results(document: Record, regime: str, methods: Mapping[str, Record]) -> Sheet:
    metric = read_metrics(document)[0]
    columns: Columns = {
        metric.heading: lambda one: _interval(one, metric.name, metric.bare),
        "ahead of bp": lambda one: (
            _interval(one, "ahead", metric.bare) if "ahead_mean" in one else NONE
        ),  # once not kept
        "gap closed": lambda one: (
            _percent(one["gap_closed"]) + ("" if one["gap_clear"] or one["gap_closed"] is None else "?")
        ),
        "batches": lambda one: f"{one['batches']:.0f}",
        "GP": lambda one: f"{one['gp_batches'] + one['guarded_batches']:.0f}",
        "seconds": lambda one: _interval(one, "seconds", "{:.1f}".format),
    }
    if regime in MODELLED:
        unit = document["platforms"][regime]["unit"]
        columns[f"modelled {unit}"] = lambda one: _large(one["modelled_cost"])
    else:
        columns["calibrated"] = lambda one: _number(one["calibrated_seconds"], 1)
    note = (
        f"{_runs(methods)} ± is the 95% interval (Student's t) over seeds. ahead of bp: seed by seed. gap closed: share of the "
        f"{metric.words} between skip and bp; ? where that gap is not clear over the seeds. GP: batches of Phase GP. seconds: "
        f"measured, training and its data without evaluation, {document['jobs']} runs at a time with one thread each; "
        "calibrated: from batches timed alone."
    )
    if regime in MODELLED:
        note += f" {_platform_note(document['platforms'][regime])}"
    if regime != BATCHES:
        note += " The learning rate falls to 0 within each run."
    return _sheet(f"{document['model']} on {document['dataset']}, {_title(document, regime)}", columns, methods, note)


def _title(document: Record, regime: str) -> str:
    if regime == BATCHES:
        return f"equal batches: {document['batches']} each"
    if regime == SECONDS:
        return f"equal seconds: {_number(document['budget_seconds'], 1)} as calibrated"
    platform = document["platforms"][regime]
    return f"equal {platform['unit']} on the {regime} {platform['platform']}: {_large(platform['budget'])}, modelled"


def _platform_note(platform: Record) -> str:
    """Return what a batch of each kind costs, in batches by plain backprop."""
    (plain,) = (one for name, one in platform["methods"].items() if name == BACKPROP)
    unit = plain["costs"][BATCHES] / sum(kind["batches"] for kind in plain["kinds"])
    parts = [
        f"{name} {', '.join(_kind(kind, unit) for kind in one['kinds'])}"
        for name, one in platform["methods"].items()
        if one is not plain
    ]
    note = f"A batch costs, in batches of plain backprop: {'; '.join(parts)}." if parts else ""
    if "bound" in plain:
        used = ", ".join(f"{name} {one['schedule']}" for name, one in platform["methods"].items())
        kept = ", ".join(f"{name} {one['kept_bytes'] / 1e6:.2f} MB" for name, one in platform["methods"].items())
        note += (
            f" Pipelines: {used}. Without any bubble a batch of plain backprop would cost {plain['bound'] / unit:.3f}. "
            f"Activations kept on a device, at most: {kept}."
        )
    return note


def _kind(kind: Record, unit: float) -> str:
    return f"{kind['phase'].upper()} {kind['cost'] / unit:.3f}"


def _tuned(document: Record) -> Sheet:
    tuning, metric = document["tuning"], read_metrics(document)[0]
    columns: Columns = {
        f"{tuning['option']} {value:g}": lambda one, value=value: _of(one[metric.name][f"{value:g}"], metric.bare)  # type: ignore[misc]
        for value in tuning["values"]
    }
    columns |= {
        "picked": lambda one: f"{one['picked']:g}" + ("*" if one["at_the_edge"] else ""),
        "batches": lambda one: f"{one['batches']}",
    }
    regime = tuning["regime"]
    cost = "batches" if regime == BATCHES else f"cost in the regime {regime}"
    note = (
        f"{metric.words.capitalize()} on {tuning['validation']:.0%} of the training data, held out of these runs; "
        f"{tuning['seeds']} seed(s) that no other run has; equal {cost}. *: the best value is at the edge of those tried. "
        f"{NONE}: the run failed or diverged."
    )
    return _sheet(f"tuning: each method's own {tuning['option']}", columns, tuning["methods"], note)


def _costs(document: Record, regime: str, methods: Mapping[str, Record]) -> Sheet:
    kinds = [*map(str, Phase), "data"]
    columns: Columns = {kind: lambda one, kind=kind: f"{one['seconds_by_phase'][kind]:.2f}" for kind in kinds}  # type: ignore[misc]
    columns["peak MB"] = lambda one: _interval(_named(one, "peak_memory"), "value", _megabytes)
    note = (
        "Seconds by phase, means over seeds: bp is backprop after the warm-up, data the wait for batches. peak MB: highest "
        "resident memory of a run's process, with Python, torch and the data set."
    )
    if (target := document["target"]) is not None:
        metric = read_metrics(document)[0]
        columns[f"reach {metric.scale * target:g}{metric.suffix}"] = lambda one: _percent(one["target_share"])
        columns["after s"] = lambda one: _interval(one, "seconds_to_target", "{:.1f}".format)
        note += " The target is looked for at the end of each epoch; seconds are of the runs that reach it."
    what = document["platforms"][regime]["unit"] + f" ({regime})" if regime in MODELLED else regime
    return _sheet(f"costs at equal {what}, measured here", columns, methods, note)


def _gradients(document: Record, methods: Mapping[str, Record]) -> Sheet:
    heads = ("cosine", "norm", "cosine, large", "norm, large", "ceiling", "ceiling, large")
    columns: Columns = {
        head: lambda one, figure=figure: _interval(_named(one, figure), "value", "{:.3f}".format)  # type: ignore[misc]
        for head, figure in zip(heads, FIGURES, strict=True)
    }
    alignment = document["alignment"]
    note = (
        f"Means over sites and {alignment['points']} batches along a run of {document['batches']} batches, over "
        f"{alignment['seeds']} seed(s). cosine, norm (ratio): what the method produces against the true gradient of the same "
        f"minibatch; large: against that of {alignment['samples']} samples. ceiling: the cosine of two minibatches' true "
        "gradients, and of a minibatch's with the large batch's. bp is measured at its own batches. "
        f"{NONE}: nothing was produced, or it has no direction."
    )
    return _sheet("gradients of Phase GP against the truth", columns, methods, note)


def _named(record: Record, figure: str) -> Record:
    """Return a figure whose mean has the plain name, in the form of those with three names."""
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
    """Return `mean ± half the interval`; the mean alone where there is no interval. `form` writes a number.

    An interval that ends where values do reaches less far to that side: both of its ends are written.
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
    parts = [f"# {document['model']} on {document['dataset']}: {', '.join(document['methods'])}"]
    for sheet in sheets(document):
        lines = [f"## {sheet.title}", "", _line(sheet.heads), _line(["---", *("---:" for _ in sheet.heads[1:])])]
        parts.append("\n".join([*lines, *map(_line, sheet.rows), "", sheet.note]))
    if document["failed"]:
        parts.append("\n".join(["## Failed", "", *(f"- {one['name']}: {one['reason']}" for one in document["failed"])]))
    parts.append(f"Repeat with: `{document['command']}`")
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def method_rows(document: Record) -> list[Record]:
    """Return one row per method and regime."""
    return [
        {"regime": regime, "name": name, **{key: value for key, value in one.items() if key != "sites"}}
        for regime, content in document["regimes"].items()
        for name, one in content["methods"].items()
    ]


def site_rows(document: Record) -> list[Record]:
    """Return one row per method and site; the figures do not depend on the regime."""
    first = _first_regime(document)
    return [
        {"name": name, "site": site, **figures} for name, one in first.items() for site, figures in one["sites"].items()
    ]


@dataclass(frozen=True)
class FinishedComparison:
    """What `adagp compare` found. `document` is all of it, as its `report.json` has it; `sheets` are the tables."""

    document: Record
    sheets: tuple[Sheet, ...]

    def __str__(self) -> str:
        return markdown(self.document)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the tables, for notebooks; then what failed."""
        failed = [f"failed: {one['name']}: {one['reason']}" for one in self.document["failed"]]
        tables = [html_table(sheet.title, sheet.heads, sheet.rows, [sheet.note]) for sheet in self.sheets]
        return "".join([*tables, html_table("Failed", ("run",), [[one] for one in failed]) if failed else ""])


def read_comparison(folder: Path | str) -> FinishedComparison:
    """Return the comparison that `adagp compare --out FOLDER` finished."""
    document = read_report(Path(folder))
    try:
        return FinishedComparison(document, tuple(sheets(document)))
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise RunError(f"'{shown(folder)}' holds a report.json that is not the report of a comparison.") from None


def read_report(folder: Path) -> Record:
    """Return the report of a finished comparison as it was written; refuse a folder that has none."""
    if not (folder / "report.json").is_file():
        raise RunError(f"'{shown(folder)}' holds no finished comparison: it has no report.json.")
    document = RunFolder(folder).read_json("report.json")
    return document if isinstance(document, dict) else {}
