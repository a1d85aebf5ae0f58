"""The page's Vega-Lite charts: common style, quality by site, seconds by phase, accelerator designs, pipelines.

Text and lines use `currentColor`, so that charts follow the page's light or dark theme without being drawn again.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, mean
from typing import Any

from adagp.program.figures.accelerator import ENERGY_PARTS
from adagp.program.figures.gantt import COLOURS as ACTION_COLOURS
from adagp.program.figures.gantt import DARK
from adagp.program.figures.style import COLOURS, GREY, MANY_COLOURS, PHASE_COLOURS
from adagp.program.report.modelled import DEVICES, Accelerated, Pipelined
from adagp.program.report.run_groups import Chapter, MethodRuns, seconds_of

INK = "currentColor"
BLACK = "#000000"
"""Not readable on a dark page: drawn as INK."""
SERIES = tuple(INK if colour == BLACK else colour for colour in MANY_COLOURS)
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
TIME_COLOURS = {**PHASE_COLOURS, "data": COLOURS[5], "evaluation": COLOURS[3]}
TIME_WORDS = {"warmup": "warm-up", "bp": "BP batches", "gp": "GP batches"}
VEGA_LITE = "6.1"
"""The version of Vega-Lite in the page. 6.4 shows `undefined` in tooltips of the nearest point (vega-lite #9707)."""
SCHEMA = f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json"  # a name, never fetched
Spec = dict[str, Any]

_AXIS = {
    "domainColor": INK,
    "domainOpacity": 0.35,
    "gridColor": INK,
    "gridOpacity": 0.1,
    "labelColor": INK,
    "labelFontSize": 12,
    "labelLimit": 220,
    "tickColor": INK,
    "tickOpacity": 0.35,
    "titleColor": INK,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "titlePadding": 8,
}
_CONFIG: Spec = {
    "axis": _AXIS,
    "background": "transparent",
    "customFormatTypes": False,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": INK},
    "view": {"stroke": None},
}


@dataclass(frozen=True)
class Key:
    """A legend entry: name, colour and, for lines, the dash pattern."""

    name: str
    colour: str
    dash: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart: heading, caption (also its description for screen readers), and the Vega-Lite specification."""

    title: str
    caption: str
    spec: Spec
    legend: tuple[Key, ...] = ()
    wide: bool = False


def finish(spec: Spec, description: str, height: int = 260) -> Spec:
    """Return a complete specification in the common style, as wide as its container and `height` pixels high."""
    size = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {"$schema": SCHEMA, "description": description, **size, "config": _CONFIG, **spec}


def series(names: Sequence[str]) -> tuple[Key, ...]:
    """Return a colour and a dash pattern for each line; with more lines than colours, the dashes differ."""
    count = len(SERIES)
    return tuple(
        Key(name, SERIES[index % count], " ".join(map(str, dash(index, len(names)))))
        for index, name in enumerate(names)
    )


def dash(index: int, count: int) -> list[int]:
    """Return the dash pattern of line `index` of `count`; a few lines differ in their dashes alone, without colour."""
    return DASHES[index % len(DASHES)] if count <= len(DASHES) else DASHES[index // len(SERIES) % len(DASHES)]


def colour(names: Sequence[str], field: str = "group") -> Spec:
    """Return the colour channel of lines; the page draws the legend itself."""
    scale = {"domain": list(names), "range": [key.colour for key in series(names)]}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def dashes(names: Sequence[str]) -> Spec:
    """Return the dash channel of lines."""
    scale = {"domain": list(names), "range": [dash(index, len(names)) for index in range(len(names))]}
    return {"field": "group", "type": "nominal", "scale": scale, "legend": None}


def palette(colours: Mapping[str, str], field: str) -> Spec:
    """Return the colour channel of a fixed table of colours."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def keys(colours: Mapping[str, str]) -> tuple[Key, ...]:
    """Return the legend of a fixed table of colours."""
    return tuple(Key(name, shade) for name, shade in colours.items())


def tip(field: str, title: str, form: str | None = None) -> Spec:
    """Return one line of a tooltip."""
    kind = {"type": "nominal"} if form is None else {"type": "quantitative", "format": form}
    return {"field": field, "title": title, **kind}


def interval_text(low: str, high: str, form: str, name: str) -> Spec:
    """Return the transform that writes the interval between two fields for reading into the field `name`."""
    ends = f"format(datum.{low}, '{form}') + ' to ' + format(datum.{high}, '{form}')"
    return {"calculate": f"isValid(datum.{low}) ? {ends} : 'one seed'", "as": name}


def axis(field: str, title: str | None, form: str | None = None, **more: Any) -> Spec:
    """Return the channel of a number along an axis; `form` is its format."""
    looks = {"title": title, "tickCount": 8, **({} if form is None else {"format": form})}
    scale = more.pop("scale", {"zero": False, "nice": True})
    return {"field": field, "type": "quantitative", "axis": {**looks, **more}, "scale": scale}


def short(value: float | None, digits: int = 4) -> float | None:
    """Return a number with few digits: the page stays small."""
    return None if value is None else float(f"{value:.{digits}g}")


MOST_COLUMNS, MOST_ROWS = 45, 60
"""Size of a heat map; longer runs show means of neighbouring epochs, deeper models every Nth site."""
MAPS = {
    "cosine": ("Cosine, predicted with true gradient", "1: the same direction; 0: unrelated"),
    "cosine_previous": (
        "Cosine, previous with true gradient",
        "the previous-gradient baseline: the last true gradient against this one",
    ),
    "mse": ("Mean squared error", "it rewards predicting zero"),
    "mape": ("Mean absolute percentage error", "it divides by numbers near zero"),
}
DESIGN_COLOURS = {"baseline": GREY, "low": COLOURS[5], "efficient": COLOURS[4], "max": COLOURS[0]}
ENERGY_COLOURS = {
    part.replace("_", " "): INK if shade == BLACK else shade
    for part, shade in zip(ENERGY_PARTS, (*COLOURS, GREY), strict=True)
}
Columns = dict[str, dict[str, list[list[float | None]]]]
"""Values by figure, site and run, epoch by epoch; None where an epoch lacks one."""
_NO_FIGURES: Mapping[str, float | None] = {}
Designs = Sequence[tuple[str, str, dict[str, Any]]]
"""The label on the page, the design's name, and its simulation report."""


def sampled(chapter: Chapter) -> list[MethodRuns]:
    """Return the methods with figures by site."""
    return [group for group in chapter.groups if any(True for site in _sites(group) for _ in _cosines(group, site))]


def _cosines(group: MethodRuns, site: str) -> Iterator[float]:
    epochs = (epoch for run in group.runs for epoch in run.epochs)
    yield from (value for epoch in epochs if (value := epoch.sites.get(site, {}).get("cosine")) is not None)


def heat_maps(chapter: Chapter, select: str) -> list[Chart]:
    """Return a heat map of sites over epochs for each figure; the element `select` chooses the method."""
    groups = sampled(chapter)
    columns = [_columns(group) for group in groups]
    return [_heat_map(groups, columns, name, select) for name in MAPS] if groups else []


def _heat_map(groups: Sequence[MethodRuns], columns: Sequence[Columns], name: str, select: str) -> Chart:
    title, remark = MAPS[name]
    rows = [row for group, figures in zip(groups, columns, strict=True) for row in _cells(group, figures[name])]
    caption = f"{title} by site (first layer on top) over epochs, mean over seeds; {remark}."
    stride = max((row["stride"] for row in rows), default=1)
    if stride > 1:
        caption += f" Long runs: means of {stride} epochs."
    if any(_is_deep(group) for group in groups):
        caption += " Deep models: not every site is shown."
    hue = {"field": "value", "type": "quantitative", "scale": _scale(name, rows), "legend": _gradient(name)}
    bare = {"ticks": False, "domain": False, "labelOverlap": True, "labelSeparation": 5}
    order = list(dict.fromkeys(row["site"] for row in rows))
    spec: Spec = {
        "data": {"values": rows},
        "params": [{"name": "sites_of", "value": groups[0].label, "bind": {"element": select, "event": "change"}}],
        "transform": [
            {"filter": "datum.group === sites_of"},
            {"calculate": "sequence(1, 1 + datum.stride * length(datum.value), datum.stride)", "as": "epoch"},
            {"flatten": ["epoch", "value"]},
            {"filter": "isValid(datum.value)"},
        ],
        "mark": {"type": "rect", "aria": False},
        "encoding": {
            "x": {
                "field": "epoch",
                "type": "ordinal",
                "sort": None,
                "axis": {"title": "epoch", "labelAngle": 0, **bare},
            },
            "y": {
                "field": "site",
                "type": "ordinal",
                "sort": order,
                "axis": {"title": None, "labelLimit": 130, **bare},
            },
            "color": hue,
            "tooltip": [tip("group", "method"), tip("site", "site"), tip("epoch", "epoch"), tip("value", name, ".3~g")],
        },
    }
    tallest = max(Counter(row["group"] for row in rows).values(), default=0)
    return Chart(title, caption, finish(spec, caption, max(120, min(520, 22 * tallest))))


def _is_deep(group: MethodRuns) -> bool:
    return any(len(epoch.sites) > MOST_ROWS for epoch in group.runs[0].epochs[:1])


def _scale(name: str, rows: Sequence[dict[str, Any]]) -> Spec:
    """Return the colour scale: symmetric around 0 for cosines, logarithmic for errors, which span decades."""
    values = [value for row in rows for value in row["value"] if value is not None]
    if name.startswith("cosine"):
        reach = max(map(abs, values), default=0.0) or 1.0
        return {"scheme": "blueorange", "reverse": True, "domain": [-reach, reach], "domainMid": 0}
    positive = [value for value in values if value > 0]
    span = {"domain": [min(positive), max(positive)]} if positive and min(positive) < max(positive) else {}
    return {"type": "log", "scheme": "viridis", "clamp": True, "nice": False, **span}


def _gradient(name: str) -> Spec:
    form = ".2~f" if name.startswith("cosine") else ".1~e"
    size = {"gradientLength": 180, "gradientThickness": 10}
    return {"title": None, "orient": "top", "format": form, "tickCount": 3, **size}


def _columns(group: MethodRuns) -> Columns:
    """Return the values of each figure and each shown site, run by run and epoch by epoch, in one pass through the epochs."""
    sites = _sites(group)
    columns: Columns = {name: {site: [[] for _ in group.runs] for site in sites} for name in MAPS}
    for number, run in enumerate(group.runs):
        append = [(site, name, columns[name][site][number].append) for site in sites for name in MAPS]
        for epoch in run.epochs:
            for site, name, add in append:
                add(epoch.sites.get(site, _NO_FIGURES).get(name))
    return columns


def _cells(group: MethodRuns, columns: Mapping[str, Sequence[Sequence[float | None]]]) -> list[dict[str, Any]]:
    """Return a row for each site (every Nth, if there are many): means over seeds and over `stride` epochs."""
    stride = max(1, ceil(group.length / MOST_COLUMNS))
    rows = []
    for site, runs in columns.items():
        values = [_mean_figure(runs, at, at + stride) for at in range(0, group.length, stride)]
        if any(value is not None for value in values):
            rows.append({"group": group.label, "site": site, "stride": stride, "value": values})
    return rows


def _sites(group: MethodRuns) -> list[str]:
    """Return the sites that are shown: every Nth, if there are many."""
    sites = list(dict.fromkeys(site for run in group.runs for epoch in run.epochs[:1] for site in epoch.sites))
    return sites[:: max(1, ceil(len(sites) / MOST_ROWS))]


def _mean_figure(runs: Sequence[Sequence[float | None]], begin: int, end: int) -> float | None:
    values = [value for run in runs for value in run[begin:end] if value is not None]
    return short(fmean(values), 3) if values else None


def time_breakdown(chapter: Chapter) -> list[Chart]:
    """Return the mean seconds of each method's runs by activity."""
    colours = {TIME_WORDS.get(name, name): shade for name, shade in TIME_COLOURS.items()}
    rows = [row for group in chapter.groups for row in _parts(group)]
    caption = "Measured seconds of a run by activity, mean over seeds: batches by phase, loading data, evaluation."
    tips = [tip("name", "method"), tip("part", "part"), tip("value", "seconds", ",.4~g"), tip("share", "share", ".1%")]
    spec = _bars(rows, "seconds", palette(colours, "part"), tips)
    used = {part: shade for part, shade in colours.items() if any(row["part"] == part for row in rows)}
    chart = Chart("", caption, finish(spec, caption, 34 * len(chapter.groups)), keys(used), wide=True)
    return [chart] if rows else []


def _parts(group: MethodRuns) -> list[dict[str, Any]]:
    parts = {name: mean([seconds_of(run, name) for run in group.counted] or [0.0]) for name in TIME_COLOURS}
    whole = sum(parts.values()) or 1.0
    return [
        {"name": group.label, "part": part, "order": order, "value": short(value), "share": short(value / whole)}
        for order, (part, value) in enumerate((TIME_WORDS.get(name, name), value) for name, value in parts.items())
        if value
    ]


def _bars(rows: list[dict[str, Any]], title: str, hue: Spec, tips: list[Spec]) -> Spec:
    """Return horizontal bars, one for each `name`, of stacked `value`s, with a margin to the right."""
    lengths: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        lengths[row["name"]] += row["value"]
    end = 1.4 * max(lengths.values(), default=0.0) or 1.0  # room for a number behind the bar on a phone
    y_axis = {"title": None, "labelLimit": 220, "ticks": False, "domain": False, "labelPadding": 8}
    return {
        "data": {"values": rows},
        "mark": {"type": "bar", "cornerRadius": 1, "height": {"band": 0.7}},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": None, "axis": y_axis},
            "x": axis("value", title, tickCount=5, scale={"domain": [0, end], "nice": False}),
            "color": hue,
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tips,
        },
    }


def designs(modelled: Accelerated) -> list[Chart]:
    """Return speed-up and energy of the accelerator's designs."""
    rows = [
        (design if len(modelled.reports) == 1 else f"{design}: {label}", design, row)
        for label, report in modelled.reports.items()
        for design, row in report["designs"].items()
    ]
    charts = [_speedups(rows), _energy(rows)]
    return charts if len(modelled.reports) == 1 else [replace(chart, wide=True) for chart in charts]  # long labels


def _speedups(simulated: Designs) -> Chart:
    caption = "Modelled speed-up over backprop on the baseline design, for the recorded phases of the run."
    rows = [{"name": name, "part": design, "value": short(row["speedup"])} for name, design, row in simulated]
    colours = {design: DESIGN_COLOURS.get(design, COLOURS[2]) for _, design, _ in simulated}
    tips = [tip("name", "design"), tip("value", "speed-up", ".3f")]
    bars = _bars(rows, "times the baseline", palette(colours, "part"), tips)
    position = {name: bars["encoding"][name] for name in ("x", "y")}
    number = {"field": "value", "type": "quantitative", "format": ".2f"}
    layers = [
        {"mark": bars["mark"], "encoding": {"color": bars["encoding"]["color"], "tooltip": tips}},
        {"mark": {"type": "text", "align": "left", "dx": 5, "aria": False}, "encoding": {"text": number}},
    ]
    spec = finish({"data": bars["data"], "encoding": position, "layer": layers}, caption, 30 * len(rows))
    return Chart("Speed-up (modelled)", caption, spec)


def _energy(simulated: Designs) -> Chart:
    caption = "Modelled energy of the whole run by component, for each design of the accelerator."
    rows = [
        {"name": name, "part": part.replace("_", " "), "value": short(row["energy"][part]), "order": order}
        for name, _, row in simulated
        for order, part in enumerate(ENERGY_PARTS)
    ]
    tips = [tip("name", "design"), tip("part", "part"), tip("value", "joules", ".3~g")]
    spec = finish(_bars(rows, "joules", palette(ENERGY_COLOURS, "part"), tips), caption, 30 * len(simulated))
    return Chart("Energy (modelled)", caption, spec, keys(ENERGY_COLOURS))


def gantt(pipelines: Iterable[Pipelined]) -> list[Chart]:
    """Return a Gantt chart for each pipeline."""
    return [_gantt(pipeline) for pipeline in pipelines]


def _gantt(pipeline: Pipelined) -> Chart:
    caption = (
        f"Modelled: {pipeline.name} takes {pipeline.steps:g} steps, {pipeline.speedup:.2f} times as fast as backprop on "
        f"every batch ({pipeline.baseline_steps:g} steps); devices idle {pipeline.bubble_share:.0%} of the time."
    )
    tips = [tip("device", "device"), tip("what", "what"), tip("micro_batch", "micro-batch")]
    tips += [tip("begin", "from step", ".4~g"), tip("end", "to", ".4~g")]
    bare = {"title": None, "ticks": False, "domain": False, "labelPadding": 6}
    white = {"test": {"field": "what", "oneOf": list(DARK)}, "value": "#fff"}
    bar = {
        "mark": {"type": "bar", "height": {"band": 0.86}, "stroke": "#fff", "strokeWidth": 0.6, "aria": False},
        "encoding": {
            "x": axis("begin", "steps", scale={"domain": [0, pipeline.steps], "nice": False}),
            "x2": {"field": "end"},
            "color": palette(ACTION_COLOURS, "what"),
        },
    }
    number = {
        "transform": [{"calculate": "(datum.begin + datum.end) / 2", "as": "middle"}],
        "mark": {"type": "text", "fontSize": 10, "aria": False},
        "encoding": {
            "x": {"field": "middle", "type": "quantitative"},
            "text": {"field": "micro_batch"},
            "color": {"condition": white, "value": "#000"},
        },
    }
    spec: Spec = {
        "data": {"values": list(pipeline.actions)},
        "encoding": {"y": {"field": "device", "type": "nominal", "axis": bare}, "tooltip": tips},
        "layer": [bar, number],
    }
    drawn = {row["what"] for row in pipeline.actions}
    used = {name: shade for name, shade in ACTION_COLOURS.items() if name in drawn}
    return Chart(pipeline.name, caption, finish(spec, caption, 26 * DEVICES), keys(used), wide=True)
