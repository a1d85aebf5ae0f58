"""Charts of parts: quality by site as heat-maps, seconds by phase, speed-up and energy of designs, pipelines."""

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import mean
from typing import Any

from adagp.lab.gantt import COLOURS as ACTION_COLOURS
from adagp.lab.hardware_figures import ENERGY_PARTS
from adagp.lab.style import COLOURS
from adagp.report.groups import Chapter, Group, seconds_of
from adagp.report.looks import TIME_COLOURS, Chart, Spec, axis, finish, keys, palette, short, tip
from adagp.report.modelled import Accelerated, Pipelined

MOST_COLUMNS = 45
"""Columns of a heat-map; longer runs show means of neighbouring epochs."""
MAPS = {
    "cosine": ("Cosine, predicted with true gradient", "1: the same direction; 0: unrelated"),
    "cosine_previous": ("Cosine, last with next true gradient", "the yardstick: below it, replaying would do better"),
    "mse": ("Mean squared error", "it rewards predicting zero"),
    "mape": ("Mean absolute percentage error", "it divides by numbers near zero"),
}
DESIGN_COLOURS = dict(
    zip(("baseline", "low", "efficient", "max"), ("#9AA0A6", COLOURS[5], COLOURS[4], COLOURS[0]), strict=True)
)
ENERGY_COLOURS = dict(zip((part.replace("_", " ") for part in ENERGY_PARTS), COLOURS, strict=False))


def sites_of(chapter: Chapter) -> list[str]:
    """Return the names of the groups with figures by site."""
    return [group.label for group in chapter.groups if any(_cells(group, "cosine"))]


def heat_maps(chapter: Chapter, select: str) -> list[Chart]:
    """Return a heat-map of sites over epochs for each figure; `select` is the element that chooses the group."""
    groups = [group for group in chapter.groups if any(_cells(group, "cosine"))]
    return [_heat_map(groups, name, select) for name in MAPS] if groups else []


def _heat_map(groups: Sequence[Group], name: str, select: str) -> Chart:
    title, remark = MAPS[name]
    rows = [row for group in groups for row in _cells(group, name)]
    values = [value for row in rows for value in row["value"] if value is not None]
    caption = f"{title} by site (first layer on top) over epochs, mean over seeds; {remark}."
    order = list(dict.fromkeys(row["site"] for row in rows))
    tips = [
        tip("group", "method"),
        tip("site", "site"),
        tip("epoch", "epoch", "d"),
        tip("value", title.split(",")[0], ".3~g"),
    ]
    spec: Spec = {
        "data": {"values": rows},
        "params": [{"name": "sites_of", "value": groups[0].label, "bind": {"element": select, "event": "change"}}],
        "transform": [
            {"filter": "datum.group === sites_of"},
            {"flatten": ["epoch", "value"]},
            {"filter": "isValid(datum.value)"},
        ],
        "mark": {"type": "rect", "aria": False, "stroke": None},
        "encoding": {
            "x": {
                "field": "epoch",
                "type": "ordinal",
                "axis": {"title": "epoch", "labelAngle": 0, "labelOverlap": True, "ticks": False, "domain": False},
            },
            "y": {
                "field": "site",
                "type": "ordinal",
                "sort": order,
                "axis": {"title": None, "labelLimit": 130, "labelOverlap": True, "ticks": False, "domain": False},
            },
            "color": {
                "field": "value",
                "type": "quantitative",
                "scale": _scale(name, values),
                "legend": _gradient(name),
            },
            "tooltip": tips,
        },
    }
    tallest = max(len({row["site"] for row in rows if row["group"] == group.label}) for group in groups)
    return Chart(title, caption, finish(spec, caption, max(120, min(520, 22 * tallest))))


def _scale(name: str, values: Sequence[float]) -> Spec:
    """Cosines on both sides of a neutral zero, alike to left and right; errors, which span decades, by their logarithm."""
    if name.startswith("cosine"):
        reach = max((abs(value) for value in values), default=1.0) or 1.0
        return {"scheme": "blueorange", "reverse": True, "domain": [-reach, reach], "domainMid": 0}
    positive = [value for value in values if value > 0]
    span = {"domain": [min(positive), max(positive)]} if positive and min(positive) < max(positive) else {}
    return {"type": "log", "scheme": "viridis", "clamp": True, "nice": False, **span}


def _gradient(name: str) -> Spec:
    return {
        "title": None,
        "orient": "top",
        "gradientLength": 180,
        "gradientThickness": 10,
        "format": ".2~f" if "cosine" in name else ".1~e",
        "tickCount": 3,
    }


def _cells(group: Group, name: str) -> list[dict[str, Any]]:
    """Return a row for each site: its epochs, and the figure's means over seeds and neighbouring epochs."""
    stride = max(1, ceil(group.length / MOST_COLUMNS))
    sites = dict.fromkeys(site for run in group.runs for epoch in run.epochs[:1] for site in epoch.sites)
    rows = []
    for site in sites:
        epochs, values = [], []
        for start in range(0, group.length, stride):
            found = [
                value
                for run in group.runs
                for epoch in run.epochs[start : start + stride]
                if (value := epoch.sites.get(site, {}).get(name)) is not None
            ]
            epochs.append(start + 1)
            values.append(short(mean(found), 3) if found else None)
        if any(value is not None for value in values):
            rows.append({"group": group.label, "site": site, "epoch": epochs, "value": values})
    return rows


def time_breakdown(chapter: Chapter) -> Chart:
    """Return the mean seconds of each group's runs by what took them."""
    rows = []
    for group in chapter.groups:
        parts = {name: mean([seconds_of(run, name) for run in group.counted] or [0.0]) for name in TIME_COLOURS}
        whole = sum(parts.values())
        rows += [
            {"group": group.label, "part": name, "order": place, "seconds": short(value), "share": short(value / whole)}
            for place, (name, value) in enumerate(parts.items())
            if value
        ]
    caption = (
        "Measured seconds of a run by what took them, mean over seeds: batches by phase, loading data, evaluation."
    )
    tips = [
        tip("group", "method"),
        tip("part", "part"),
        tip("seconds", "seconds", ",.4~g"),
        tip("share", "share", ".1%"),
    ]
    spec = _stacked(rows, "group", "seconds", "seconds", palette(TIME_COLOURS, "part"), tips)
    return Chart("Where the time went", caption, finish(spec, caption, {"step": 34}), keys(TIME_COLOURS), wide=True)


def _stacked(rows: list[dict[str, Any]], y: str, x: str, title: str, hue: Spec, tips: list[Spec]) -> Spec:
    y_axis = {"title": None, "labelLimit": 150, "ticks": False, "domain": False, "labelPadding": 8}
    return {
        "data": {"values": rows},
        "mark": {"type": "bar", "cornerRadius": 1, "height": {"band": 0.7}},
        "encoding": {
            "y": {"field": y, "type": "nominal", "sort": None, "axis": y_axis},
            "x": axis(x, title, scale={"zero": True}),
            "color": hue,
            "order": {"field": "order"},
            "tooltip": tips,
        },
    }


def designs(modelled: Accelerated) -> list[Chart]:
    """Return speed-up and energy of the accelerator's designs."""
    alone = len(modelled.reports) == 1
    speed, energy = [], []
    for label, report in modelled.reports.items():
        for design, row in report["designs"].items():
            name = design if alone else f"{label} · {design}"
            speed.append({"name": name, "design": design, "group": label, "speedup": short(row["speedup"])})
            energy += [
                {"name": name, "part": part.replace("_", " "), "joules": short(row["energy"][part]), "order": place}
                for place, part in enumerate(ENERGY_PARTS)
            ]
    used = {design: DESIGN_COLOURS.get(design, COLOURS[2]) for design in dict.fromkeys(row["design"] for row in speed)}
    faster = "Modelled speed-up over backprop on the baseline design, for the phases that the run really went through."
    saved = "Modelled energy of the whole run by where it goes: the designs of the accelerator side by side."
    bars = _stacked(
        speed,
        "name",
        "speedup",
        "times the baseline",
        palette(used, "design"),
        [tip("group", "method"), tip("design", "design"), tip("speedup", "speed-up", ".3f")],
    )
    encoding = {name: channel for name, channel in bars["encoding"].items() if name != "order"}
    write = {"type": "text", "align": "left", "dx": 5}
    labelled = {
        "data": bars["data"],
        "encoding": {"y": encoding["y"], "x": {**encoding["x"], "scale": {"zero": True, "padding": 24}}},
        "layer": [
            {"mark": bars["mark"], "encoding": {"color": encoding["color"], "tooltip": encoding["tooltip"]}},
            {"mark": write, "encoding": {"text": {"field": "speedup", "type": "quantitative", "format": ".2f"}}},
        ],
    }
    tips = [tip("name", "design"), tip("part", "part"), tip("joules", "joules", ".3~g")]
    stacked = _stacked(energy, "name", "joules", "joules", palette(ENERGY_COLOURS, "part"), tips)
    return [
        Chart("Speed-up (modelled)", faster, finish(labelled, faster, {"step": 30})),
        Chart("Energy (modelled)", saved, finish(stacked, saved, {"step": 30}), keys(ENERGY_COLOURS)),
    ]


def gantt(pipelines: Iterable[Pipelined]) -> list[Chart]:
    """Return a Gantt chart for each pipeline."""
    return [_gantt(pipeline) for pipeline in pipelines]


def _gantt(pipeline: Pipelined) -> Chart:
    caption = (
        f"Modelled: {pipeline.name} takes {pipeline.steps:g} steps, {pipeline.speedup:.2f} times as fast as backprop on "
        f"every batch ({pipeline.baseline_steps:g} steps); devices idle {pipeline.bubble_share:.0%} of the time."
    )
    tips = [
        tip("device", "device"),
        tip("what", "what"),
        tip("micro_batch", "micro-batch"),
        tip("begin", "from step", ".4~g"),
        tip("end", "to", ".4~g"),
    ]
    y = {
        "field": "device",
        "type": "nominal",
        "axis": {"title": None, "ticks": False, "domain": False, "labelPadding": 6},
    }
    spec: Spec = {
        "data": {"values": list(pipeline.actions)},
        "encoding": {"y": y, "tooltip": tips},
        "layer": [
            {
                "mark": {"type": "bar", "height": {"band": 0.86}, "stroke": "#fff", "strokeWidth": 0.6, "aria": False},
                "encoding": {
                    "x": axis("begin", "steps", scale={"domain": [0, pipeline.steps], "nice": False}),
                    "x2": {"field": "end"},
                    "color": palette(ACTION_COLOURS, "what"),
                },
            },
            {
                "transform": [{"calculate": "(datum.begin + datum.end) / 2", "as": "middle"}],
                "mark": {"type": "text", "fontSize": 10, "color": "#000", "aria": False},
                "encoding": {
                    "x": {"field": "middle", "type": "quantitative"},
                    "text": {"field": "micro_batch"},
                    "color": {"condition": {"test": "datum.what === 'backward'", "value": "#fff"}, "value": "#000"},
                },
            },
        ],
    }
    used = {
        name: shade for name, shade in ACTION_COLOURS.items() if any(row["what"] == name for row in pipeline.actions)
    }
    return Chart(pipeline.name, caption, finish(spec, caption, {"step": 26}), keys(used), wide=True)
