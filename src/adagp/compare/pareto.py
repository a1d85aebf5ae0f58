"""The metric against seconds: who is worth its time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.compare.comparison import BATCHES, SECONDS
from adagp.figures.style import COLOURS, FAINT, save, style, subplots
from adagp.run.metrics import Metric, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]
MARKERS = ("o", "s", "^", "D")
"""One for each round through the colours."""
TITLES = {BATCHES: "equal batches", SECONDS: "equal seconds as calibrated"}
LABEL_HEIGHT = 11.0
"""Points between the lines of text of two labels that stand above each other."""
ABOVE = 8.0
"""Points by which a label stands above its point, clear of the error bar."""


def draw_pareto(document: Record, out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw a picture with a panel for each regime into the folder `out`; return the files written."""
    regimes, metric = document["regimes"], read_metrics(document)[0]
    with style():
        figure, (axes,) = subplots(1, len(regimes), (1.2 + 5.2 * len(regimes), 5.0))
        colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(document["methods"])}
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
            fmt=MARKERS[list(colours).index(name) // len(COLOURS) % len(MARKERS)],
            markersize=5,
            color=colours[name],
            elinewidth=1,
            capsize=2,
        )
    axis.margins(x=0.22, y=0.12)
    _label(axis, points, colours)


def _reach(record: Record, name: str, factor: float) -> float | None:
    low, high = record[f"{name}_low"], record[f"{name}_high"]
    return None if low is None else factor * (high - low) / 2


def _label(axis: "Axes", points: Mapping[str, tuple[float, float]], colours: Mapping[str, str]) -> None:
    """Write each name beside its point; labels that would lie on each other are moved apart, with a line to the point."""
    from matplotlib.patheffects import withStroke

    axis.figure.canvas.draw()  # fixes the scales
    scale = 72 / axis.figure.dpi
    places = {name: axis.transData.transform(point) * scale for name, point in points.items()}
    heights = spread([(float(places[name][1]), name) for name in points], LABEL_HEIGHT)
    for name, point in points.items():
        shift = heights[name] - float(places[name][1]) + ABOVE
        axis.annotate(
            name,
            point,
            xytext=(5, shift),
            textcoords="offset points",
            fontsize=8,
            va="center",
            color=colours[name],
            path_effects=[withStroke(linewidth=2, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": colours[name], "linewidth": 0.5}
            if abs(shift - ABOVE) > 5
            else None,
        )


def spread(wanted: Sequence[tuple[float, str]], apart: float) -> dict[str, float]:
    """Return heights near the wanted ones, in the same order, and at least `apart` from each other."""
    groups: list[tuple[float, list[str]]] = []  # centre of a stack of labels, from low to high
    for height, name in sorted(wanted):
        groups.append((height, [name]))
        while len(groups) > 1 and _top(groups[-2], apart) + apart > _bottom(groups[-1], apart):
            (upper, above), (lower, below) = groups.pop(), groups.pop()
            names = below + above
            groups.append(((lower * len(below) + upper * len(above)) / len(names), names))
    return {
        name: _bottom((centre, names), apart) + place * apart
        for centre, names in groups
        for place, name in enumerate(names)
    }


def _bottom(group: tuple[float, list[str]], apart: float) -> float:
    return group[0] - apart * (len(group[1]) - 1) / 2


def _top(group: tuple[float, list[str]], apart: float) -> float:
    return group[0] + apart * (len(group[1]) - 1) / 2
