"""The metric against seconds: who is worth its time."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.program.compare.comparison import BATCHES, SECONDS
from adagp.program.figures.labels import label_points
from adagp.program.figures.style import FAINT, save, series_colour, style, subplots
from adagp.program.run.metrics import Metric, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]
Point = tuple[float, float]
MARKERS = ("o", "s", "^", "D")
MARKED = 7
"""Methods with the same marker."""
TITLES = {BATCHES: "equal batches", SECONDS: "equal seconds as calibrated"}


def draw_pareto(document: Record, out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw a picture with a panel for each regime into the folder `out`; return the files written."""
    regimes, metric = document["regimes"], read_metrics(document)[0]
    with style():
        height = 5.0 + 0.15 * max(0, len(document["methods"]) - 8)
        figure, (axes,) = subplots(1, len(regimes), (1.2 + 5.6 * len(regimes), height))
        colours = {name: series_colour(place) for place, name in enumerate(document["methods"])}
        for axis, (regime, content) in zip(axes, regimes.items(), strict=True):
            _panel(axis, content["methods"], colours, metric)
            title = TITLES.get(regime, f"equal cost on the {regime}, modelled")
            axis.set(title=title, xlabel="seconds of training, measured", ylabel=f"test {metric.heading}")
        counts = {one["runs"] for content in regimes.values() for one in content["methods"].values()}
        figure.suptitle(f"{document['model']} on {document['dataset']}", fontsize=11)
        bars = "bars: 95% interval over seeds; " if max(counts) > 1 else ""
        figure.supxlabel(f"{bars}line: methods that no other one beats in both", fontsize=8, color=FAINT)
        return [save(figure, out / f"pareto.{ending}") for ending in formats]


def _panel(axis: "Axes", methods: Mapping[str, Record], colours: Mapping[str, str], metric: Metric) -> None:
    known = {name: one for name, one in methods.items() if one[f"{metric.name}_mean"] is not None}
    points = {name: (one["seconds_mean"], metric.scale * one[f"{metric.name}_mean"]) for name, one in known.items()}
    path = [points[name] for name in metric.front(points)]
    axis.plot(*zip(*path, strict=True), color=FAINT, linewidth=0.9, linestyle=":", zorder=1)
    for name, point in points.items():
        axis.errorbar(
            *point,
            xerr=_reach(known[name], "seconds", 1),
            yerr=_reach(known[name], metric.name, metric.scale),
            fmt=MARKERS[list(colours).index(name) // MARKED % len(MARKERS)],
            markersize=5,
            color=colours[name],
            elinewidth=1,
            capsize=2,
        )
    axis.margins(x=0.12, y=0.1)
    label_points(axis, points, colours, [bar for name in points for bar in _bars(known[name], points[name], metric)])


def _reach(record: Record, name: str, factor: float) -> list[list[float]] | None:
    """Return how far an interval reaches below and above its mean; an end that is not possible is cut off."""
    middle, low, high = (record[f"{name}_{end}"] for end in ("mean", "low", "high"))
    return None if low is None else [[factor * (middle - low)], [factor * (high - middle)]]


def _bars(record: Record, point: tuple[float, float], metric: Metric) -> Iterator[tuple[Point, Point]]:
    """Yield where the bars of a point's intervals begin and end."""
    if record["seconds_low"] is not None:
        yield (record["seconds_low"], point[1]), (record["seconds_high"], point[1])
    if record[f"{metric.name}_low"] is not None:
        low, high = (metric.scale * record[f"{metric.name}_{end}"] for end in ("low", "high"))
        yield (point[0], low), (point[0], high)
