"""Plots of a comparison: the metric against seconds, and the worth of a GP batch against its break-even."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.program.compare.comparison import BATCHES, SECONDS
from adagp.program.compare.worth import PAYS, PAYS_NOT, UNCLEAR
from adagp.program.figures.style import (
    COLOURS,
    FAINT,
    label_points,
    save,
    series_colour,
    spread_labels,
    style,
    subplots,
)
from adagp.program.run.metrics import Metric, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]
Point = tuple[float, float]
MARKERS = ("o", "s", "^", "D")
MARKED = 7
"""Number of consecutive methods with the same marker."""
TITLES = {BATCHES: "equal batches", SECONDS: "equal seconds as calibrated"}


def draw_pareto(document: Record, out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw the metric against seconds into the folder `out`, with a panel for each regime; return the files."""
    regimes, metric = document["regimes"], read_metrics(document)[0]
    with style():
        height = 5.0 + 0.15 * max(0, len(document["methods"]) - 8)
        figure, (axes,) = subplots(1, len(regimes), (1.2 + 5.6 * len(regimes), height))
        colours = {name: series_colour(index) for index, name in enumerate(document["methods"])}
        for axis, (regime, content) in zip(axes, regimes.items(), strict=True):
            _pareto_panel(axis, content["methods"], colours, metric)
            title = TITLES.get(regime, f"equal cost on the {regime}, modelled")
            axis.set(title=title, xlabel="seconds of training, measured", ylabel=f"test {metric.heading}")
        counts = {method["runs"] for content in regimes.values() for method in content["methods"].values()}
        figure.suptitle(f"{document['model']} on {document['dataset']}", fontsize=11)
        bars = "bars: 95% interval over seeds; " if max(counts) > 1 else ""
        figure.supxlabel(f"{bars}line: Pareto front", fontsize=8, color=FAINT)
        return [save(figure, out / f"pareto.{ending}") for ending in formats]


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
LABEL_HEIGHT = 10.0
"""Distance in points between two labels."""


def draw_worth(worth: Record, path: Path) -> Path:
    """Draw into `path` a panel for each method: the worth as a band, the break-even of each platform as a mark."""
    methods = worth["methods"]
    with style():
        figure, axes = subplots(1, len(methods), (1.2 + 3.6 * len(methods), 5.2))
        for axis, (name, method) in zip(axes[0], methods.items(), strict=True):
            _worth_panel(axis, method)
            axis.set(title=name, ylabel="batches of plain backprop", xticks=[])
        figure.supxlabel(
            "band: worth of a GP batch, 95% interval\nmarks: break-even on a platform\n"
            "green: pays, yellow: too close to say, red: does not pay",
            fontsize=8,
            color=FAINT,
        )
        return save(figure, path)


def _worth_panel(axis: "Axes", method: Record) -> None:
    low, high = method["interval"]
    ends = [end for end in (low, high, method["worth"]) if end is not None]
    top = 1.15 * max([1.0, *ends, *(platform["break_even"] for platform in method["platforms"].values())])
    bottom = min([0.0, *ends])
    axis.set(xlim=(0, 1), ylim=(bottom - 0.05 * top, top))
    if ends:
        below, above = bottom - top if low is None else low, top if high is None else high
        axis.axhspan(below, above, color=COLOURS[0], alpha=0.18, linewidth=0)
    if method["worth"] is not None:
        axis.axhline(method["worth"], color=COLOURS[0], linewidth=1.5)
    _mark_platforms(axis, method["platforms"])


def _mark_platforms(axis: "Axes", platforms: Mapping[str, Record]) -> None:
    marks = {name: platform["break_even"] for name, platform in platforms.items()}
    axis.figure.canvas.draw()  # fixes the scale
    scale = 72 / axis.figure.dpi
    positions = {name: float(axis.transData.transform((0, value))[1]) * scale for name, value in marks.items()}
    heights = spread_labels([(position, name) for name, position in positions.items()], LABEL_HEIGHT)
    for name, value in marks.items():
        colour, marker = VERDICTS[platforms[name]["verdict"]]
        axis.plot(0.2, value, marker=marker, color=colour, markersize=6)
        axis.annotate(
            f"{name} {value:.2f}",
            (0.2, value),
            xytext=(22, heights[name] - positions[name]),
            textcoords="offset points",
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.4},
        )
