"""The common style of figures, how to create and save them, and label placement. Needs `pip install '.[plot]'`.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish, and further ones for more series that are
distinct from them on white and on black.
"""

import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from math import cos, hypot, radians, sin
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.escape import escaped
from adagp.core.files import check_output_file, publish
from adagp.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis
    from matplotlib.figure import Figure


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHADE = "#E69F00"
FAINT = "#555555"
GREY = "#9AA0A6"
MANY_COLOURS = (
    *COLOURS,
    *("#8C564B", "#7B5FC9", "#9A9A1F", "#C2255C", "#17A2B8", "#7CB518", "#F06595", "#8D949B", "#FA8072"),
)
PHASE_COLOURS = {"warmup": GREY, "bp": COLOURS[0], "gp": COLOURS[4]}
FORMATS = (".svg", ".png", ".pdf")
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "text.parse_math": False,  # names may contain dollar signs
    "svg.hashsalt": "adagp",  # reproducible files
}


def require_matplotlib() -> None:
    """Raise with install instructions if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError("figures need matplotlib, which is not installed: pip install '.[plot]'.")


def check_picture_path(path: Path) -> None:
    """Check that a figure can be written to `path`, before any work begins."""
    require_matplotlib()
    if path.suffix not in FORMATS:
        raise OptionError(f"cannot plot to '{path}'; the name must end in {', '.join(FORMATS)}.")
    check_output_file(path, "plot to")


def style() -> Any:
    """Return a context manager with the common style; global settings do not change."""
    import matplotlib as mpl
    from cycler import cycler

    return mpl.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=list(COLOURS))})


def subplots(
    rows: int, columns: int, size: tuple[float, float], *, share_y: bool = False
) -> "tuple[Figure, list[list[Axes]]]":
    """Return a figure of `size` inches and its axes by row, without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    return figure, axes.tolist()


def series_colour(index: int) -> str:
    """Return the colour of a series; 16 are distinct."""
    return MANY_COLOURS[index % len(MANY_COLOURS)]


def mark_better(axes: "Axes", side: str, height: str) -> None:
    """Draw an arrow towards the corner where both figures are better: `left` or `right`, `above` or `below`."""
    x, y = (0.03 if side == "left" else 0.97), (0.97 if height == "above" else 0.03)
    inner = (x + (0.1 if side == "left" else -0.1), y + (-0.1 if height == "above" else 0.1))
    look = {"arrowstyle": "->", "color": FAINT, "lw": 1.4}
    text = {"fontsize": 8, "color": FAINT, "ha": side, "va": "top" if height == "above" else "bottom"}
    axes.annotate(
        "better", (x, y), inner, "axes fraction", "axes fraction", arrowprops=look, annotation_clip=False, **text
    )


def legend_beside(axes: "Axes", **details: Any) -> None:
    """Put the legend to the right of the axes."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, **details)


def some_of(count: int, most: int) -> range:
    """Return at most `most` evenly spaced indices below `count`, for labels where there are too many."""
    return range(0, count, max(1, -(-count // most)))


def whole_numbers(axis: "XAxis") -> None:
    """Put ticks at integers only, for epochs or layers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # a single epoch needs a tick, too


def save(figure: "Figure", path: Path) -> Path:
    """Write the figure reproducibly, without a date.

    Invisible characters of users' names are escaped; characters without a glyph become boxes.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator, LogFormatter

    for text in figure.findobj(Text):
        text.set_text(escaped(text.get_text(), lines=True))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            chosen = isinstance(axis.get_major_locator(), FixedLocator)
            if axis.get_scale() == "log" and not chosen:  # the default labels need math text
                axis.set_major_formatter(LogFormatter())
                axis.set_minor_formatter(LogFormatter())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        content, kind = BytesIO(), path.suffix.removeprefix(".")
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    publish(path, content.getvalue())
    return path


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""
RADII = (7.0, 14.0, 22.0, 32.0, 44.0, 58.0, 75.0, 95.0, 120.0, 150.0, 190.0)
ANGLES = (30, 150, -30, -150, 60, 120, -60, -120, 90, -90, 0, 180, 15, 165, -15, -165, 75, 105, -75, -105)
"""Angles in degrees at which a label is tried, in this order."""
CROSSED = 25.0
"""Cost of covering an error bar, as a distance in points."""
LED = 16.0
"""Distance in points above which a line connects a label and its point."""


def place_boxes(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    inside: Box,
    bars: Sequence[Box] = (),
    margin: float = 4.0,
) -> list[Box]:
    """Return a box of each size near its point: without overlaps, covering no point, and `inside`, if possible.

    Greedy, the most crowded points first; each box takes the position with the least overlap, then the least distance.
    Covering one of the `bars` counts as extra distance.
    """
    taken: list[Box] = [(x - margin, y - margin, x + margin, y + margin) for x, y in points]
    boxes: dict[int, Box] = {}
    for index in sorted(range(len(points)), key=lambda point: -_crowd(points, point)):
        tried = list(_positions(points[index], sizes[index]))
        costs = [
            (sum(_shared(box, other) for other in taken) + _outside(box, inside), radius, box) for radius, box in tried
        ]
        best = min(
            costs, key=lambda cost: (cost[0], cost[1] + CROSSED * sum(_shared(cost[2], bar) > 0 for bar in bars))
        )
        boxes[index] = best[2]
        taken.append(best[2])
    return [boxes[index] for index in range(len(points))]


def _crowd(points: Sequence[tuple[float, float]], index: int) -> float:
    x, y = points[index]
    return sum(1.0 / (10.0 + hypot(x - other[0], y - other[1])) for other in points)


def _positions(point: tuple[float, float], size: tuple[float, float]) -> Iterator[tuple[float, Box]]:
    for radius in RADII:
        for angle in ANGLES:
            x, y = point[0] + radius * cos(radians(angle)), point[1] + radius * sin(radians(angle))
            left = x - size[0] / 2 if abs(angle) == 90 else x if abs(angle) < 90 else x - size[0]
            yield radius, (left, y - size[1] / 2, left + size[0], y + size[1] / 2)


def _shared(box: Box, other: Box) -> float:
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


def _outside(box: Box, inside: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) - _shared(box, inside)


def label_points(
    axes: "Axes",
    points: Mapping[str, tuple[float, float]],
    colours: Mapping[str, str],
    bars: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> None:
    """Write each name next to its point, in its colour; `bars` are error bars to avoid, in data coordinates."""
    from matplotlib.patheffects import withStroke

    if not points:
        return
    axes.figure.canvas.draw()  # fixes the scales
    scale = 72 / axes.figure.dpi

    def in_points(position: Any) -> tuple[float, float]:
        x, y = axes.transData.transform(position) * scale
        return float(x), float(y)

    names = list(points)
    positions = [in_points(points[name]) for name in names]
    sizes = [_text_size(axes, name) for name in names]
    lines = [_box(in_points(begin), in_points(end)) for begin, end in bars]
    left, bottom, right, top = (scale * float(edge) for edge in axes.get_window_extent().extents)
    boxes = place_boxes(positions, sizes, (left, bottom, right, top), lines)
    for name, point, (x, y), box in zip(names, points.values(), positions, boxes, strict=True):
        middle = (box[1] + box[3]) / 2
        near = min(max(x, box[0]), box[2])
        far = hypot(near - x, middle - y) > LED
        axes.annotate(
            name,
            point,
            xytext=(box[0] - x, middle - y),
            textcoords="offset points",
            fontsize=8,
            va="center",
            ha="left",
            color=colours[name],
            path_effects=[withStroke(linewidth=2, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": colours[name], "linewidth": 0.5, "relpos": _nearest(x, box)}
            if far
            else None,
        )


def _nearest(x: float, box: Box) -> tuple[float, float]:
    """Return where the line from a label to its point begins, as a fraction of the label: the nearer end."""
    return (0.0, 0.5) if x < box[0] else (1.0, 0.5) if x > box[2] else (0.5, 0.5)


def _box(begin: tuple[float, float], end: tuple[float, float]) -> Box:
    (x, y), (other_x, other_y) = begin, end
    return min(x, other_x) - 0.5, min(y, other_y) - 0.5, max(x, other_x) + 0.5, max(y, other_y) + 0.5


def _text_size(axes: "Axes", text: str) -> tuple[float, float]:
    drawn = axes.text(0, 0, text, fontsize=8)
    extent = drawn.get_window_extent()
    drawn.remove()
    scale = 72 / axes.figure.dpi
    return float(extent.width) * scale + 3, float(extent.height) * scale + 3


def spread_labels(labels: Sequence[tuple[float, str]], apart: float, highest: float | None = None) -> dict[str, float]:
    """Return heights near the wanted ones, in the same order, and at least `apart` from each other.

    Labels that collide become a stack around their mean. With `highest`, heights are kept between 0 and it, if they fit.
    """
    groups: list[tuple[float, list[str]]] = []  # centre of a stack of labels, from low to high
    for height, name in sorted(labels):
        groups.append((height, [name]))
        while len(groups) > 1 and _top(groups[-2], apart) + apart > _bottom(groups[-1], apart):
            (upper, above), (lower, below) = groups.pop(), groups.pop()
            names = below + above
            groups.append(((lower * len(below) + upper * len(above)) / len(names), names))
    heights = {
        name: _bottom((centre, names), apart) + index * apart
        for centre, names in groups
        for index, name in enumerate(names)
    }
    return heights if highest is None else _clamped(heights, apart, highest)


def _clamped(heights: dict[str, float], apart: float, highest: float) -> dict[str, float]:
    """Return ascending heights, moved down from the top and up from the bottom as far as needed, still `apart`."""
    clamped, limit = dict(heights), highest - apart / 2
    for name in reversed(clamped):
        clamped[name] = min(clamped[name], limit)
        limit = clamped[name] - apart
    limit = apart / 2
    for name in clamped:
        clamped[name] = max(clamped[name], limit)
        limit = clamped[name] + apart
    return clamped


def _bottom(group: tuple[float, list[str]], apart: float) -> float:
    return group[0] - apart * (len(group[1]) - 1) / 2


def _top(group: tuple[float, list[str]], apart: float) -> float:
    return group[0] + apart * (len(group[1]) - 1) / 2


def grouped_bars(
    axes: "Axes",
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    rotated: bool = True,
    legend: bool = True,
) -> None:
    """Draw for each label one bar of every series; `rotated` labels take less width."""
    width = 0.8 / len(series)
    for number, (name, heights) in enumerate(series.items()):
        positions = [index - 0.4 + (number + 0.5) * width for index in range(len(labels))]
        axes.bar(positions, heights, width, label=name)
    axes.set_xticks(
        range(len(labels)), labels, rotation=60 if rotated else 0, ha="right" if rotated else "center", fontsize=8
    )
    if legend and len(series) > 1:
        legend_beside(axes)


def published_lines(axes: "Axes", numbers: Mapping[str, float]) -> None:
    """Draw published numbers as lines across the bars: the first dashed, its value below, the second dotted, above."""
    looks = (("--", "top", -2), (":", "bottom", 2))
    for (style, side, shift), (name, value) in zip(looks, numbers.items(), strict=False):
        axes.axhline(value, color=COLOURS[-1], linestyle=style, linewidth=1.2, label=f"published {name}, MAX")
        axes.annotate(
            f"{name} {value:g}",
            (0.01, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, shift),
            va=side,
            textcoords="offset points",
            fontsize=7,
        )
