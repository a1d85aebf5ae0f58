"""Plots of comparisons: the metric of each method, the worth of a GP batch against its break-even, and the map of all."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.break_even import break_even_rho_squared
from adagp.program.compare.comparison import BATCHES, SECONDS
from adagp.program.compare.worth import PAYS, PAYS_NOT, UNCLEAR
from adagp.program.compare.worth_map import MapPoint
from adagp.program.figures.style import (
    COLOURS,
    FAINT,
    label_points,
    mark_better,
    save,
    series_colour,
    style,
    subplots,
)
from adagp.program.run.metrics import Metric, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]
Point = tuple[float, float]
MARKERS = ("o", "s", "^", "D")
MARKED = 7
"""Number of consecutive methods with the same marker."""
TITLES = {BATCHES: "equal batches", SECONDS: "equal CPU seconds, calibrated"}


def draw_pareto(document: Record, out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw a panel for each regime into the folder `out`; return the files.

    At equal batches the metric is drawn against the seconds measured. At equal cost there is a row for each method instead: the
    seconds that a run happened to take would only show how busy the machine was.
    """
    regimes, metric = document["regimes"], read_metrics(document)[0]
    with style():
        height = 5.0 + 0.15 * max(0, len(document["methods"]) - 8)
        columns = min(2, len(regimes))  # more next to each other would be too small to read on a page
        rows = -(-len(regimes) // columns)
        size = (1.2 + 5.6 * columns, rows * (height if BATCHES in regimes else 3.4))
        figure, grid = subplots(rows, columns, size)
        axes = [axis for row in grid for axis in row]
        for unused in axes[len(regimes) :]:
            unused.set_visible(False)
        colours = {name: series_colour(index) for index, name in enumerate(document["methods"])}
        for axis, (regime, content) in zip(axes, regimes.items(), strict=False):
            if regime == BATCHES:
                _pareto_panel(axis, content["methods"], colours, metric)
            else:
                runs = [run for run in document["runs"] if run["regime"] == regime]
                _equal_cost_panel(axis, content["methods"], runs, colours, metric)
            axis.set(title=TITLES.get(regime, f"equal cost on the {regime}, modelled"))
        figure.suptitle(f"{document['model']} on {document['dataset']}", fontsize=11)
        figure.supxlabel(_pareto_key(regimes), fontsize=8, color=FAINT)
        return [save(figure, out / f"pareto.{ending}") for ending in formats]


def _pareto_key(regimes: Mapping[str, Record]) -> str:
    """Return what the bars, dots and lines of the panels mean."""
    counts = {method["runs"] for content in regimes.values() for method in content["methods"].values()}
    bars = ["bars: 95% interval over seeds"] if max(counts) > 1 else []
    dots = ["small dots: single seeds"] if max(counts) > 1 and set(regimes) != {BATCHES} else []
    lines = ["dotted line: Pareto front"] if BATCHES in regimes else []
    return "; ".join([*bars, *dots, *lines])


def _equal_cost_panel(
    axis: "Axes",
    methods: Mapping[str, Record],
    runs: Sequence[Record],
    colours: Mapping[str, str],
    metric: Metric,
) -> None:
    """Draw a row for each method: the metric of every seed, the mean and its interval, and backprop's mean as a line."""
    known = {name: method for name, method in methods.items() if method[f"{metric.name}_mean"] is not None}
    for row, (name, method) in enumerate(known.items()):
        values = [metric.scale * run[metric.name] for run in runs if run["name"] == name]
        axis.plot(values, [row + 0.22] * len(values), ".", color=colours[name], markersize=4, alpha=0.7)
        middle = metric.scale * method[f"{metric.name}_mean"]
        bar = _error_bar(method, metric.name, metric.scale)
        axis.errorbar(middle, row, xerr=bar, fmt="o", color=colours[name], markersize=6, elinewidth=1.2, capsize=3)
        axis.annotate(f"{middle:.1f}", (middle, row), (0, 6), textcoords="offset points", ha="center", fontsize=8)
        if method["method"] == "bp":
            axis.axvline(middle, color=FAINT, linewidth=0.9, linestyle="--", zorder=1)
    axis.set_yticks(range(len(known)), [_with_batch_size(name, method) for name, method in known.items()])
    axis.set(ylim=(len(known) - 0.5, -0.5), xlabel=f"test {metric.heading}")


def _with_batch_size(name: str, method: Record) -> str:
    return f"{name}\nbatch {method['batch_size']}" if method.get("batch_size") else name


def _pareto_panel(axis: "Axes", methods: Mapping[str, Record], colours: Mapping[str, str], metric: Metric) -> None:
    known = {name: method for name, method in methods.items() if method[f"{metric.name}_mean"] is not None}
    points = {
        name: (method["seconds_mean"], metric.scale * method[f"{metric.name}_mean"]) for name, method in known.items()
    }
    path = [points[name] for name in metric.front(points)]
    axis.plot(*zip(*path, strict=True), color=FAINT, linewidth=0.9, linestyle=":", zorder=1)
    for name, point in points.items():
        axis.errorbar(
            *point,
            xerr=_error_bar(known[name], "seconds", 1),
            yerr=_error_bar(known[name], metric.name, metric.scale),
            fmt=MARKERS[list(colours).index(name) // MARKED % len(MARKERS)],
            markersize=5,
            color=colours[name],
            elinewidth=1,
            capsize=2,
        )
    axis.set(xlabel="seconds of training, measured", ylabel=f"test {metric.heading}")
    mark_better(axis, "left", "above" if metric.higher_is_better else "below")
    axis.margins(x=0.12, y=0.1)
    label_points(axis, points, colours, [bar for name in points for bar in _bars(known[name], points[name], metric)])


def _error_bar(record: Record, name: str, factor: float) -> list[list[float]] | None:
    """Return the distances of an interval's ends from its mean, for matplotlib."""
    middle, low, high = (record[f"{name}_{end}"] for end in ("mean", "low", "high"))
    return None if low is None else [[factor * (middle - low)], [factor * (high - middle)]]


def _bars(record: Record, point: tuple[float, float], metric: Metric) -> Iterator[tuple[Point, Point]]:
    if record["seconds_low"] is not None:
        yield (record["seconds_low"], point[1]), (record["seconds_high"], point[1])
    if record[f"{metric.name}_low"] is not None:
        low, high = (metric.scale * record[f"{metric.name}_{end}"] for end in ("low", "high"))
        yield (point[0], low), (point[0], high)


VERDICTS = {PAYS: (COLOURS[2], "o"), UNCLEAR: (COLOURS[4], "s"), PAYS_NOT: (COLOURS[1], "X")}
PLATFORM_SIZES = re.compile(r"devices=(\d+),micro-batches=(\d+)")


def draw_worth(worth: Record, path: Path) -> Path:
    """Draw into `path` a panel for each method: its worth as a band, the break-even of each platform as a mark in its row."""
    methods = worth["methods"]
    rows = max(len(method["platforms"]) for method in methods.values())
    with style():
        figure, axes = subplots(len(methods), 1, (7.0, 0.9 + (0.9 + 0.28 * rows) * len(methods)))
        for row, (name, method) in zip(axes, methods.items(), strict=True):
            _worth_panel(row[0], method)
            row[0].set(title=name)
        axes[-1][0].set_xlabel("batches of plain backprop")
        figure.supxlabel(
            "band: worth of a GP batch, 95% interval; marks: break-even, which has to be left of the band\n"
            "green: pays, yellow: too close to say, red: does not pay",
            fontsize=8,
            color=FAINT,
        )
        return save(figure, path)


def _worth_panel(axis: "Axes", method: Record) -> None:
    low, high = method["interval"]
    platforms: Mapping[str, Record] = method["platforms"]
    ends = [end for end in (low, high, method["worth"]) if end is not None]
    right = 1.1 * max([1.0, *ends, *(platform["break_even"] for platform in platforms.values())])
    left = min([0.0, *ends])
    axis.set(xlim=(left, right), ylim=(len(platforms) - 0.4, -0.6))
    if ends:
        begin, end = left if low is None else low, right if high is None else high
        axis.axvspan(begin, end, color=COLOURS[0], alpha=0.18, linewidth=0)
    if method["worth"] is not None:
        axis.axvline(method["worth"], color=COLOURS[0], linewidth=1.5)
    for row, platform in enumerate(platforms.values()):
        colour, marker = VERDICTS[platform["verdict"]]
        axis.plot(platform["break_even"], row, marker=marker, color=colour, markersize=7)
        axis.annotate(
            f"{platform['break_even']:.2f}",
            (right, row),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    axis.set_yticks(range(len(platforms)), [platform_label(name, platform) for name, platform in platforms.items()])


def platform_label(name: str, platform: Record) -> str:
    """Return the name of a platform for people; a pipeline by its devices and micro-batches."""
    sizes = PLATFORM_SIZES.search(platform["details"])
    return name if sizes is None else f"pipeline, {sizes[1]} devices x {sizes[2]} micro-batches"


PLATFORM_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
MAP_SHARES = (0.5, 0.25)
"""Shares of true gradients whose break-even is drawn in the noise-limited panel, in addition to the best share."""
STEP_LIMITED = "large batches, many devices: steps are what counts"
NOISE_LIMITED = "small batches: noise is what counts"


def draw_map(points: Sequence[MapPoint], path: Path) -> Path:
    """Draw into `path` the plane of quality and price, with a panel for each regime in which something was measured."""
    points = _drawn_points(points)
    series = list(dict.fromkeys(point.series for point in points))
    panels = [
        (title, known)
        for title, known in (
            (STEP_LIMITED, [point for point in points if point.worth is not None]),
            (NOISE_LIMITED, [point for point in points if point.rho_squared is not None]),
        )
        if known
    ]
    platforms = list(dict.fromkeys(point.platform for point in points))
    rows = (len(series) + len(platforms) + 3) / len(panels)
    with style():
        figure, (axes,) = subplots(1, len(panels), (1.0 + 5.0 * len(panels), 4.2 + 0.17 * rows))
        for axis, (title, known) in zip(axes, panels, strict=True):
            _map_panel(axis, title, known, series, platforms)
        _map_legend(figure, series, platforms)
        return save(figure, path)


def _drawn_points(points: Sequence[MapPoint]) -> list[MapPoint]:
    """Return the points of predictions, without the balanced pipelines between the smallest and the largest.

    The prices of all balanced pipelines are close. Batches that cost nothing are left out, unless there are no others: they are
    not predicted.
    """
    points = [point for point in points if point.price] or points
    sizes = {point.platform: int(size) for point in points if (size := point.platform.partition("-")[2]).isdecimal()}
    shown = {min(sizes.values()), max(sizes.values())} if sizes else set()
    return [point for point in points if point.platform not in sizes or sizes[point.platform] in shown]


def _map_panel(
    axis: "Axes", title: str, points: Sequence[MapPoint], series: Sequence[str], platforms: Sequence[str]
) -> None:
    steps = title == STEP_LIMITED
    right = max(1.0, *(1.08 * _map_position(point, steps)[0] for point in points))
    ends = [1.08 * end for point in points for end in _map_ends(point, steps)]
    top, bottom = max(1.0, *ends), min(0.0, *ends)
    axis.set(xlim=(0, right), ylim=(bottom, top), title=title)
    edge = max(right, top)
    axis.fill_between([0, edge], [0, edge], [edge, edge], color=COLOURS[2], alpha=0.10, linewidth=0)
    axis.plot([0, edge], [0, edge], color=FAINT, linewidth=1.4)
    axis.text(0.03 * right, top - 0.05 * (top - bottom), "pays", color=COLOURS[2], weight="bold", va="top")
    axis.text(0.97 * right, 0.62 * top, "does not pay", color=COLOURS[1], weight="bold", ha="right", va="bottom")
    if steps:
        axis.set(xlabel="price of a GP batch and overhead of learning", ylabel="worth of a GP batch")
    else:
        axis.set(xlabel="price of a GP batch", ylabel="rho², of single samples' gradients")
        _draw_shares(axis, right)
    for point in points:
        position = _map_position(point, steps)
        low, high = point.worth_interval if steps else point.rho_squared_interval
        axis.errorbar(
            *position,
            yerr=[[0.0 if low is None else position[1] - low], [0.0 if high is None else high - position[1]]],
            fmt=PLATFORM_MARKERS[platforms.index(point.platform) % len(PLATFORM_MARKERS)],
            color=series_colour(series.index(point.series)),
            markersize=6,
            elinewidth=0.8,
            capsize=2,
            clip_on=False,
        )


def _map_position(point: MapPoint, steps: bool) -> Point:
    """Return price and quality."""
    if steps:
        assert point.worth is not None
        return (point.price if point.break_even is None else point.break_even), point.worth
    assert point.rho_squared is not None
    return point.price, point.rho_squared


def _map_ends(point: MapPoint, steps: bool) -> list[float]:
    interval = point.worth_interval if steps else point.rho_squared_interval
    return [_map_position(point, steps)[1], *(end for end in interval if end is not None)]


def _draw_shares(axis: "Axes", right: float) -> None:
    """Draw the break-even with fixed shares of true gradients; the diagonal is that of the best share."""
    prices = [right * step / 200 for step in range(201)]
    for share, dashes in zip(MAP_SHARES, ((4, 2), (1, 1.5)), strict=True):
        needed = [break_even_rho_squared(price, share) for price in prices]
        axis.plot(prices, needed, color=FAINT, linewidth=1.0, dashes=dashes, label=f"{share:.0%} true gradients")


def _map_platform(name: str) -> str:
    """Return the name of a platform for people; a balanced pipeline has as many micro-batches as devices."""
    kind, _, size = name.partition("-")
    if size.isdecimal():
        return f"{kind}, {size} devices x {size} micro-batches"
    return {"cpu": "CPU", "cluster": "data-parallel devices", "pipeline": "pipeline of the comparison"}.get(name, name)


def _map_legend(figure: "Figure", series: Sequence[str], platforms: Sequence[str]) -> None:
    """List the methods by colour and the platforms by marker below the panels."""
    from matplotlib.lines import Line2D

    methods = [Line2D([], [], color=series_colour(index), linewidth=4, label=name) for index, name in enumerate(series)]
    others = [
        Line2D(
            [],
            [],
            color=FAINT,
            linestyle="",
            marker=PLATFORM_MARKERS[index % len(PLATFORM_MARKERS)],
            label=_map_platform(name),
        )
        for index, name in enumerate(platforms)
    ]
    dashed = [line for axis in figure.axes for line in axis.get_lines() if "true gradients" in str(line.get_label())]
    details = " (noise: with the best share of true gradients)" if dashed else ""
    others += [Line2D([], [], color=FAINT, linewidth=1.4, label=f"break-even{details}"), *dashed]
    columns = len(figure.axes)
    if columns > 1:  # legends fill column after column: a column each for methods and for all else
        shorter = min(methods, others, key=len)
        shorter += [Line2D([], [], linestyle="", label=" ")] * abs(len(methods) - len(others))
    figure.legend(handles=methods + others, loc="outside lower center", ncols=columns, fontsize=8)
