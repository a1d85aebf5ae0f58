"""The Pareto plot: final values against training seconds, and who is beaten in neither."""

from collections.abc import Sequence
from typing import Any

from adagp.core.intervals import NEVER_NEGATIVE
from adagp.program.figures.labels import spread
from adagp.program.report.chart_style import INK, Chart, Spec, axis, colour, finish, interval_text, short, tip
from adagp.program.report.curves import formats
from adagp.program.report.groups import Chapter, MethodRuns, final_value, training_seconds
from adagp.program.run.metrics import Metric

LABEL_HEIGHT = 15
"""Pixels between the names of two points."""
LONGEST_LABEL = 170
"""Pixels of a name beside the Pareto plot; longer ones are cut off, and whole under the pointer."""


def pareto(chapter: Chapter) -> list[Chart]:
    """Return the final values against training seconds: one point per group with its intervals, and who is not beaten."""
    metric = chapter.metric
    rows = [row for group in chapter.groups if (row := _outcome(group, metric))]
    rough, fine = formats(metric)
    caption = (
        f"Final test {metric.words} against training seconds of the whole run. Bars are 95% intervals over seeds; on the "
        "dashed line are the methods that no other beats in both."
    )
    if any(group.unfinished for group in chapter.groups):
        caption += " Methods without a finished run are left out."
    height = max(320, LABEL_HEIGHT * len(rows) + 40)
    low, high = _extent(rows, metric.name)
    scale = {"domain": [low, high], "nice": False, "zero": False}
    place = {"x": axis("seconds", "seconds of training"), "y": axis(metric.name, None, rough, scale=scale)}
    hue = {"color": colour([group.label for group in chapter.groups])}
    tips = [tip("group", "method"), tip("seeds", "seeds", "d")]
    texts = []
    for name, title, form in ((metric.name, metric.words, fine), ("seconds", "seconds", ",.4~g")):
        tips += [tip(name, title, form), tip(f"{name}_interval", "95% interval")]
        texts.append(interval_text(f"{name}_low", f"{name}_high", form, f"{name}_interval"))
    line = {"type": "line", "color": INK, "opacity": 0.45, "strokeDash": [4, 4], "strokeWidth": 1.2, "aria": False}
    point = {"type": "point", "filled": True, "size": 110, "opacity": 1}
    layers: list[Spec] = [
        {"data": {"values": _front(rows, metric)}, "mark": line, "encoding": place},
        *(_bar({**place, **hue}, channel) for channel in ("x", "y") if any("seconds_low" in row for row in rows)),
        {"transform": texts, "mark": point, "encoding": {**place, **hue, "tooltip": tips}},
        *_names(_beside(rows, metric.name, (low, high), height), place, hue),
    ]
    room = min(LONGEST_LABEL, 20 + 7 * max((len(row["group"]) for row in rows), default=0))
    padding = {"left": 5, "top": 5, "bottom": 5, "right": room}
    spec = finish({"data": {"values": rows}, "layer": layers, "padding": padding}, caption, height)
    return [Chart("Pareto plot", caption, spec, wide=True)] if rows else []


def _extent(rows: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    """Return the ends of an axis with some room around all points and their intervals."""
    ends = [row[key] for row in rows for key in (name, f"{name}_low", f"{name}_high") if key in row] or [0.0]
    room = 0.06 * (max(ends) - min(ends)) or 0.05 * abs(ends[0]) or 1.0
    return min(ends) - room, max(ends) + room


def _beside(rows: Sequence[dict[str, Any]], name: str, ends: tuple[float, float], height: int) -> list[dict[str, Any]]:
    """Return the rows with `slot`, where their names stand to the right of the chart: near their points, all apart."""
    pixel = (ends[1] - ends[0]) / height
    wanted = [((row[name] - ends[0]) / pixel, row["group"]) for row in rows]
    slots = spread(wanted, LABEL_HEIGHT, height)
    return [{**row, "slot": ends[0] + slots[row["group"]] * pixel} for row in rows]


def _bar(encoding: Spec, channel: str) -> Spec:
    """Return the interval of each point along one axis."""
    field = encoding[channel]["field"]
    ends = {channel: {**encoding[channel], "field": f"{field}_low"}, f"{channel}2": {"field": f"{field}_high"}}
    mark = {"type": "rule", "opacity": 0.7, "strokeWidth": 1.5, "aria": False}
    return {"transform": [{"filter": f"isValid(datum.{field}_low)"}], "mark": mark, "encoding": {**encoding, **ends}}


def _names(rows: list[dict[str, Any]], place: Spec, hue: Spec) -> list[Spec]:
    """Return the name of each point in a column to the right of the chart, and a line from the one to the other."""
    slot = {**place["y"], "field": "slot"}
    lead = {"type": "rule", "opacity": 0.35, "strokeWidth": 1, "aria": False}
    write = {"type": "text", "align": "left", "baseline": "middle", "dx": 6, "limit": LONGEST_LABEL - 12}
    data = {"data": {"values": rows}}
    return [
        {**data, "mark": lead, "encoding": {**place, **hue, "x2": {"value": "width"}, "y2": {"field": "slot"}}},
        {**data, "mark": write, "encoding": {"x": {"value": "width"}, "y": slot, "text": {"field": "group"}}},
    ]


def _outcome(group: MethodRuns, metric: Metric) -> dict[str, Any] | None:
    final, seconds = group.over_runs(final_value, metric.bounds), group.over_runs(training_seconds, NEVER_NEGATIVE)
    if final is None or seconds is None or group.unfinished:
        return None
    row: dict[str, Any] = {"group": group.label, "seeds": final.count}
    for name, one in ((metric.name, final), ("seconds", seconds)):
        row[name] = short(one.mean, 5)
        if one.low is not None:
            row |= {f"{name}_low": short(one.low, 5), f"{name}_high": short(one.high, 5)}
    return row


def _front(rows: list[dict[str, Any]], metric: Metric) -> list[dict[str, Any]]:
    """Return the outcomes that none other beats in value and seconds at once."""
    return [
        rows[place] for place in metric.front({at: (row["seconds"], row[metric.name]) for at, row in enumerate(rows)})
    ]
