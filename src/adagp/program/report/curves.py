"""Charts over time: the metric against seconds, loss and metric over epochs with GP epochs shaded, the Pareto front."""

from collections.abc import Callable, Sequence
from math import ceil
from operator import attrgetter
from statistics import fmean, mean
from typing import Any

from adagp.core.intervals import NEVER_NEGATIVE, UNBOUNDED, Bounds
from adagp.program.figures.style import SHADE, spread_labels
from adagp.program.report.charts import INK, Chart, Spec, axis, colour, dashes, finish, interval_text, short, tip
from adagp.program.report.ranking import EqualTime
from adagp.program.report.run_groups import Chapter, MethodRuns, final_value, training_seconds
from adagp.program.run.metrics import SHARE, Metric
from adagp.program.run.record import Epoch

PLAIN = (".3~g", ".4~g")
"""Vega formats of plain numbers: short for axes, long for tooltips."""
MOST_PIXELS = 1000
"""Maximum width of a chart in pixels. For longer runs, each pixel shows the smallest and the largest value."""
BAND = "Bands are 95% intervals over seeds (Student's t), where there are several."
Read = Callable[[Epoch], float | None]
"""Reads a value of an epoch."""


def points(chapter: Chapter, read: Read, bounds: Bounds) -> list[dict[str, Any]]:
    """Return a row for each method and epoch with a value: mean, interval, training seconds until then.

    A method with a single row is marked `alone`: it makes no line, so its point is always shown.
    """
    points = []
    for group in chapter.groups:
        drawn = thinned(group.means(read))
        rows = [row for index in drawn if (row := _point(group, index, read, bounds)) is not None]
        points += [{**row, "alone": True} for row in rows] if len(rows) == 1 else rows
    return points


def thinned(values: Sequence[float | None]) -> list[int]:
    """Return the indices of the values to draw: all, or if there are many, the smallest and the largest for each pixel."""
    present = [(value, index) for index, value in enumerate(values) if value is not None]
    if len(present) <= 2 * MOST_PIXELS:
        return [index for _, index in present]
    stride = ceil(len(present) / MOST_PIXELS)
    blocks = (present[begin : begin + stride] for begin in range(0, len(present), stride))
    chosen = {index for block in blocks for _, index in (min(block), max(block))}
    return sorted(chosen | {present[0][1], present[-1][1]})


def _point(group: MethodRuns, index: int, read: Read, bounds: Bounds) -> dict[str, Any] | None:
    estimate = group.at_epoch(index, read, bounds)
    if estimate is None:
        return None
    runs = [run for run in group.counted if index < len(run.epochs)]
    row: dict[str, Any] = {"group": group.label, "epoch": runs[0].epochs[index].number, "seeds": estimate.count}
    row |= {"seconds": short(mean(run.clock[index] for run in runs)), "value": short(estimate.mean)}
    return row if estimate.low is None else {**row, "low": short(estimate.low), "high": short(estimate.high)}


def metric_over_time(chapter: Chapter, moment: EqualTime | None) -> list[Chart]:
    """Return the metric against training seconds; `moment` is marked."""
    metric = chapter.metric
    rows = points(chapter, attrgetter("test_value"), metric.bounds)
    caption = f"Test {metric.words} against training seconds, with data loading, without evaluation. {BAND}"
    layers = _lines(chapter, rows, _seconds_axis(), f"test {metric.words}", formats(metric))
    if moment is not None:
        longest = max((row["seconds"] for row in rows), default=0.0)
        layers += _marked(moment.seconds, to_the_right=moment.seconds < longest / 2)
    spec = finish({"data": {"values": rows}, "layer": layers}, caption, 320)
    return [Chart(f"{capital(metric.words)} against time", caption, spec, wide=True)] if rows else []


def _seconds_axis() -> Spec:
    """Return the axis of training time. It begins at zero: a run of one epoch is a single point, which has no range."""
    return axis("seconds", "seconds of training", scale={"zero": True, "nice": True})


def formats(metric: Metric) -> tuple[str, str]:
    """Return Vega formats of a metric: short for axes, long for tooltips."""
    return (".1%", ".2%") if metric.unit == SHARE else PLAIN


def capital(words: str) -> str:
    """Return the words with a capital first letter."""
    return words[:1].upper() + words[1:]


def _marked(seconds: float, *, to_the_right: bool) -> list[Spec]:
    data = {"data": {"values": [{"at": seconds, "text": "equal wall-clock time"}]}}
    at = {"x": {"field": "at", "type": "quantitative"}}
    side: Spec = {"align": "left", "dx": 5} if to_the_right else {"align": "right", "dx": -5}
    write = {"type": "text", "baseline": "bottom", "y": "height", "dy": -6, "opacity": 0.8, **side}
    return [
        {**data, "mark": {"type": "rule", "strokeDash": [3, 3], "opacity": 0.6}, "encoding": at},
        {**data, "mark": write, "encoding": {**at, "text": {"field": "text"}}},
    ]


def over_epochs(chapter: Chapter, select: str) -> list[Chart]:
    """Return training loss and test values over epochs; the element `select` chooses whose phases are shaded."""
    shades, metric = _shades(chapter), chapter.metric
    longest = max((len(run.epochs) for group in chapter.groups for run in group.runs), default=1)
    ticks = {"tickCount": max(1, min(8, longest)), "tickMinStep": 1}  # whole epochs, in short runs too
    x = axis("epoch", "epoch", "d", **ticks, scale={"zero": False, "nice": False, "padding": 8})
    charts = []
    for name, title, forms, bounds in (
        ("train_loss", "training loss", PLAIN, NEVER_NEGATIVE if _never_negative(chapter) else UNBOUNDED),
        ("test_value", f"test {metric.words}", formats(metric), metric.bounds),
    ):
        rows = points(chapter, attrgetter(name), bounds)
        caption = f"{capital(title)} over epochs. {BAND}"
        caption += " Shaded: epochs with GP batches, the darker the larger their share." if shades else ""
        layers = [*_shading(shades), *_lines(chapter, rows, x, title, forms)]
        spec = finish({"data": {"values": rows}, "layer": layers}, caption)
        if shades:
            bind = {"element": select, "event": "change"}
            spec["params"] = [{"name": "phases_of", "value": shades[0]["group"], "bind": bind}]
        if rows:
            charts.append(Chart(capital(title), caption, spec))
    return charts


def _never_negative(chapter: Chapter) -> bool:
    """Return whether no loss is negative: a custom loss, such as a log-likelihood, may be."""
    losses = (epoch.train_loss for group in chapter.groups for run in group.runs for epoch in run.epochs)
    return all(loss is None or loss >= 0 for loss in losses)


def _lines(chapter: Chapter, rows: list[dict[str, Any]], x: Spec, title: str, forms: tuple[str, str]) -> list[Spec]:
    names, (rough, fine) = [group.label for group in chapter.groups], forms
    tips = [tip("group", "method"), tip("epoch", "epoch", "d"), tip("seconds", "seconds", ",.4~g")]
    tips += [tip("value", title, fine), tip("interval", "95% interval"), tip("seeds", "seeds", "d")]
    position, hue = {"x": x, "y": axis("value", None, rough)}, {"color": colour(names)}
    ends = {"x": x, "y": {**position["y"], "field": "low"}, "y2": {"field": "high"}}
    hover = {"name": "at", "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}}
    opacity = {
        "condition": [{"param": "at", "empty": False, "value": 1}, {"test": "datum.alone", "value": 1}],
        "value": 0,
    }
    band: Spec = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.16, "aria": False},
        "encoding": {**ends, **hue},
    }
    line: Spec = {
        "mark": {"type": "line", "strokeWidth": 2.2, "strokeJoin": "round", "aria": False},
        "encoding": {**position, **hue, "strokeDash": dashes(names)},
    }
    dots: Spec = {
        "transform": [interval_text("low", "high", fine, "interval")],
        "params": [hover],
        "mark": {"type": "point", "filled": True, "size": 70, "aria": False},
        "encoding": {**position, **hue, "opacity": opacity, "tooltip": tips},
    }
    return [*([band] if any("low" in row for row in rows) else []), line, dots]


def _shades(chapter: Chapter) -> list[dict[str, Any]]:
    """Return a row for each epoch of methods with GP batches: their share, and the ratio where it changes.

    In a long run, a row stands for all epochs in one pixel.
    """
    rows = []
    for group in chapter.groups:
        if not group.predicts:
            continue
        before = ""
        epochs = max(group.runs, key=lambda run: len(run.epochs)).epochs
        stride = ceil(len(epochs) / MOST_PIXELS)
        for begin in range(0, len(epochs), stride):
            block = epochs[begin : begin + stride]
            new = block[0].label if block[0].label != before else ""
            ends = {"left": block[0].number - 0.5, "right": block[-1].number + 0.5}
            share = short(fmean(epoch.predicted_share for epoch in block), 3)
            rows.append({"group": group.label, **ends, "share": share, "ratio": new})
            before = block[0].label
    return rows


def predicting(chapter: Chapter) -> list[str]:
    """Return the labels of methods with GP batches."""
    return [group.label for group in chapter.groups if group.predicts]


def _shading(shades: list[dict[str, Any]]) -> list[Spec]:
    if not shades:
        return []
    chosen = {"filter": "datum.group === phases_of"}
    left = {"x": {"field": "left", "type": "quantitative"}}
    depth = {"field": "share", "type": "quantitative", "scale": {"domain": [0, 1], "range": [0, 0.34]}, "legend": None}
    write = {"type": "text", "angle": 270, "align": "right", "baseline": "top", "fontSize": 10, "opacity": 0.75}
    return [
        {
            "data": {"values": shades},
            "transform": [chosen],
            "mark": {"type": "rect", "color": SHADE, "aria": False},
            "encoding": {**left, "x2": {"field": "right"}, "opacity": depth},
        },
        {
            "data": {"values": shades},
            "transform": [chosen, {"filter": "datum.ratio !== ''"}],
            "mark": {**write, "y": 0, "dx": -3, "dy": 3, "aria": False},
            "encoding": {**left, "text": {"field": "ratio"}},
        },
    ]


LABEL_HEIGHT = 15
"""Distance in pixels between two labels."""
LONGEST_LABEL = 170
"""Width in pixels of a label next to the Pareto plot; longer ones are cut off, and complete in the tooltip."""


def pareto(chapter: Chapter) -> list[Chart]:
    """Return the final values against training seconds: a point with intervals per method, and the Pareto front."""
    metric = chapter.metric
    rows = [row for group in chapter.groups if (row := _outcome(group, metric))]
    if not rows:
        return []
    rough, fine = formats(metric)
    caption = (
        f"Final test {metric.words} against training seconds of the whole run. Bars are 95% intervals over seeds; the "
        "dashed line is the Pareto front."
    )
    if any(group.unfinished for group in chapter.groups):
        caption += " Methods without a finished run are left out."
    height = max(320, LABEL_HEIGHT * len(rows) + 40)
    low, high = _extent(rows, metric.name)
    scale = {"domain": [low, high], "nice": False, "zero": False}
    position = {"x": _seconds_axis(), "y": axis(metric.name, None, rough, scale=scale)}
    hue = {"color": colour([group.label for group in chapter.groups])}
    coloured = {**position, **hue}
    texts, tips = _interval_tips(((metric.name, metric.words, fine), ("seconds", "seconds", ",.4~g")))
    line = {"type": "line", "color": INK, "opacity": 0.45, "strokeDash": [4, 4], "strokeWidth": 1.2, "aria": False}
    point = {"type": "point", "filled": True, "size": 110, "opacity": 1}
    layers: list[Spec] = [
        {"data": {"values": _front(rows, metric)}, "mark": line, "encoding": position},
        *([_bar(coloured, "x"), _bar(coloured, "y")] if any("seconds_low" in row for row in rows) else []),
        *_names(_label_slots(rows, metric.name, (low, high), height), position, hue),
        {"transform": texts, "mark": point, "encoding": {**coloured, "tooltip": tips}},  # on top: lines take no pointer
    ]
    spec = finish({"data": {"values": rows}, "layer": layers}, caption, height)
    return [Chart("Pareto plot", caption, spec, wide=True)]


def _interval_tips(figures: Sequence[tuple[str, str, str]]) -> tuple[list[Spec], list[Spec]]:
    """Return the transforms that format the interval of each (name, title, format), and the tooltip that shows them."""
    texts, tips = [], [tip("group", "method"), tip("seeds", "seeds", "d")]
    for name, title, form in figures:
        tips += [tip(name, title, form), tip(f"{name}_interval", "95% interval")]
        texts.append(interval_text(f"{name}_low", f"{name}_high", form, f"{name}_interval"))
    return texts, tips


def _extent(rows: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    ends = [row[key] for row in rows for key in (name, f"{name}_low", f"{name}_high") if key in row]
    margin = 0.06 * (max(ends) - min(ends)) or 0.05 * abs(ends[0]) or 1.0
    return min(ends) - margin, max(ends) + margin


def _label_slots(
    rows: Sequence[dict[str, Any]], name: str, ends: tuple[float, float], height: int
) -> list[dict[str, Any]]:
    """Return the rows with `slot`, the height of their label at the right: near the point, without overlap."""
    pixel = (ends[1] - ends[0]) / height
    labels = [((row[name] - ends[0]) / pixel, row["group"]) for row in rows]
    slots = spread_labels(labels, LABEL_HEIGHT, height)
    return [{**row, "slot": ends[0] + slots[row["group"]] * pixel} for row in rows]


def _bar(encoding: Spec, channel: str) -> Spec:
    field = encoding[channel]["field"]
    ends = {channel: {**encoding[channel], "field": f"{field}_low"}, f"{channel}2": {"field": f"{field}_high"}}
    mark = {"type": "rule", "opacity": 0.7, "strokeWidth": 1.5, "aria": False}
    return {"transform": [{"filter": f"isValid(datum.{field}_low)"}], "mark": mark, "encoding": {**encoding, **ends}}


def _names(rows: list[dict[str, Any]], position: Spec, hue: Spec) -> list[Spec]:
    """Return the labels in a column to the right of the chart, with lines to their points."""
    slot = {**position["y"], "field": "slot"}
    lead = {"type": "rule", "opacity": 0.35, "strokeWidth": 1, "aria": False}
    write = {"type": "text", "align": "left", "baseline": "middle", "dx": 6, "limit": LONGEST_LABEL - 12}
    data = {"data": {"values": rows}}
    return [
        {**data, "mark": lead, "encoding": {**position, **hue, "x2": {"value": "width"}, "y2": {"field": "slot"}}},
        {**data, "mark": write, "encoding": {"x": {"value": "width"}, "y": slot, "text": {"field": "group"}}},
    ]


def _outcome(group: MethodRuns, metric: Metric) -> dict[str, Any] | None:
    final, seconds = group.over_runs(final_value, metric.bounds), group.over_runs(training_seconds, NEVER_NEGATIVE)
    if final is None or seconds is None or group.unfinished:
        return None
    row: dict[str, Any] = {"group": group.label, "seeds": final.count}
    for name, estimate in ((metric.name, final), ("seconds", seconds)):
        row[name] = short(estimate.mean, 5)
        if estimate.low is not None:
            row |= {f"{name}_low": short(estimate.low, 5), f"{name}_high": short(estimate.high, 5)}
    return row


def _front(rows: list[dict[str, Any]], metric: Metric) -> list[dict[str, Any]]:
    return [
        rows[index]
        for index in metric.front({index: (row["seconds"], row[metric.name]) for index, row in enumerate(rows)})
    ]
