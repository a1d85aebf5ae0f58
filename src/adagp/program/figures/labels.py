"""Names beside points: each where it covers no other name and no point, as near to its own as can be."""

from collections.abc import Iterator, Mapping, Sequence
from math import cos, hypot, radians, sin
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""
RADII = (7.0, 14.0, 22.0, 32.0, 44.0, 58.0, 75.0, 95.0, 120.0, 150.0, 190.0)
ANGLES = (30, 150, -30, -150, 60, 120, -60, -120, 90, -90, 0, 180, 15, 165, -15, -165, 75, 105, -75, -105)
"""Where a name is tried, in degrees; to the right and above first."""
CROSSED = 25.0
"""How many points farther away a name may be rather than lie on the bar of an interval."""
LED = 16.0
"""Points from which on a line leads from the name to its point."""


def place_boxes(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    inside: Box,
    bars: Sequence[Box] = (),
    margin: float = 4.0,
) -> list[Box]:
    """Return a box of each size near its point: no two overlap, none covers a point, all lie `inside`, if that can be.

    Where no place is free, the box lies where it covers least. `bars` are covered only where the way round is long.
    """
    taken: list[Box] = [(x - margin, y - margin, x + margin, y + margin) for x, y in points]
    found: dict[int, Box] = {}
    for place in sorted(range(len(points)), key=lambda one: -_crowd(points, one)):
        tried = list(_tried(points[place], sizes[place]))
        costs = [
            (sum(_shared(box, other) for other in taken) + _outside(box, inside), radius, box) for radius, box in tried
        ]
        best = min(costs, key=lambda one: (one[0], one[1] + CROSSED * sum(_shared(one[2], bar) > 0 for bar in bars)))
        found[place] = best[2]
        taken.append(best[2])
    return [found[place] for place in range(len(points))]


def _crowd(points: Sequence[tuple[float, float]], place: int) -> float:
    """Return how many other points are near: who has most of them chooses first."""
    x, y = points[place]
    return sum(1.0 / (10.0 + hypot(x - other[0], y - other[1])) for other in points)


def _tried(point: tuple[float, float], size: tuple[float, float]) -> Iterator[tuple[float, Box]]:
    """Yield the places for a box around a point, by distance."""
    for radius in RADII:
        for angle in ANGLES:
            x, y = point[0] + radius * cos(radians(angle)), point[1] + radius * sin(radians(angle))
            left = x - size[0] / 2 if abs(angle) == 90 else x if abs(angle) < 90 else x - size[0]
            yield radius, (left, y - size[1] / 2, left + size[0], y + size[1] / 2)


def _shared(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


def _outside(box: Box, inside: Box) -> float:
    """Return the area of a box that lies outside."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _shared(box, inside)


def label_points(
    axes: "Axes",
    points: Mapping[str, tuple[float, float]],
    colours: Mapping[str, str],
    bars: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> None:
    """Write each name beside its point, in its colour; `bars` are lines from one place to another, in the axes' own scales."""
    from matplotlib.patheffects import withStroke

    if not points:
        return
    axes.figure.canvas.draw()  # fixes the scales
    scale = 72 / axes.figure.dpi

    def shown(place: Any) -> tuple[float, float]:
        x, y = axes.transData.transform(place) * scale
        return float(x), float(y)

    names = list(points)
    places = [shown(points[name]) for name in names]
    sizes = [_text_size(axes, name) for name in names]
    lines = [_box(shown(begin), shown(end)) for begin, end in bars]
    left, bottom, right, top = (scale * float(edge) for edge in axes.get_window_extent().extents)
    boxes = place_boxes(places, sizes, (left, bottom, right, top), lines)
    for name, point, (x, y), box in zip(names, points.values(), places, boxes, strict=True):
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
    """Return where on a name the line to its point begins: the end that is nearer."""
    return (0.0, 0.5) if x < box[0] else (1.0, 0.5) if x > box[2] else (0.5, 0.5)


def _box(begin: tuple[float, float], end: tuple[float, float]) -> Box:
    (x, y), (other_x, other_y) = begin, end
    return min(x, other_x) - 0.5, min(y, other_y) - 0.5, max(x, other_x) + 0.5, max(y, other_y) + 0.5


def _text_size(axes: "Axes", text: str) -> tuple[float, float]:
    """Return width and height of a name in points."""
    drawn = axes.text(0, 0, text, fontsize=8)
    extent = drawn.get_window_extent()
    drawn.remove()
    scale = 72 / axes.figure.dpi
    return float(extent.width) * scale + 3, float(extent.height) * scale + 3


def spread(wanted: Sequence[tuple[float, str]], apart: float, highest: float | None = None) -> dict[str, float]:
    """Return heights near the wanted ones, in the same order, and at least `apart` from each other.

    With `highest`, they lie between 0 and it, if there is room.
    """
    groups: list[tuple[float, list[str]]] = []  # centre of a stack of labels, from low to high
    for height, name in sorted(wanted):
        groups.append((height, [name]))
        while len(groups) > 1 and _top(groups[-2], apart) + apart > _bottom(groups[-1], apart):
            (upper, above), (lower, below) = groups.pop(), groups.pop()
            names = below + above
            groups.append(((lower * len(below) + upper * len(above)) / len(names), names))
    found = {
        name: _bottom((centre, names), apart) + place * apart
        for centre, names in groups
        for place, name in enumerate(names)
    }
    return found if highest is None else _held_between(found, apart, highest)


def _held_between(heights: dict[str, float], apart: float, highest: float) -> dict[str, float]:
    """Return rising heights moved down from the top and up from the bottom as far as they must be, still `apart`."""
    held, limit = dict(heights), highest - apart / 2
    for name in reversed(held):
        held[name] = min(held[name], limit)
        limit = held[name] - apart
    limit = apart / 2
    for name in held:
        held[name] = max(held[name], limit)
        limit = held[name] + apart
    return held


def _bottom(group: tuple[float, list[str]], apart: float) -> float:
    return group[0] - apart * (len(group[1]) - 1) / 2


def _top(group: tuple[float, list[str]], apart: float) -> float:
    return group[0] + apart * (len(group[1]) - 1) / 2
