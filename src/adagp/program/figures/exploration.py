"""A design space as a picture: every pair of objectives, the Pareto front in front."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from adagp.hw.explore import OBJECTIVES, Point
from adagp.program.figures.style import COLOURS, check_picture_path, save, style, subplots

LABELS = {
    "cycles": "cycles of the run",
    "seconds": "seconds of the run",
    "energy": "joules of the run",
    "area": "square millimetres",
    "dram": "off-chip bytes of the run",
}


def plot_front(
    points: Sequence[Point], front: Sequence[bool], objectives: Sequence[str], title: str, path: Path
) -> None:
    """Draw all points faintly and those of the front, in the colour of their dataflow, over them."""
    check_picture_path(path)
    pairs = list(combinations(objectives, 2))
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    with style():
        figure, axes = subplots(rows, columns, (5.2 * columns, 4.6 * rows))
        cells = [cell for row in axes for cell in row]
        for cell in cells[len(pairs) :]:
            cell.set_axis_off()
        best = [point for point, on in zip(points, front, strict=True) if on]
        dataflows = list(dict.fromkeys(point.settings["dataflow"] for point in points))
        for cell, (across, up) in zip(cells, pairs, strict=False):
            horizontal, vertical = OBJECTIVES[across], OBJECTIVES[up]
            cell.scatter(
                [getattr(point, horizontal) for point in points],
                [getattr(point, vertical) for point in points],
                s=5,
                color="#c4c8cc",
                linewidths=0,
                label="dominated",
            )
            for number, dataflow in enumerate(dataflows):
                chosen = [point for point in best if point.settings["dataflow"] == dataflow]
                cell.scatter(
                    [getattr(point, horizontal) for point in chosen],
                    [getattr(point, vertical) for point in chosen],
                    s=20,
                    color=COLOURS[number % len(COLOURS)],
                    edgecolors="white",
                    linewidths=0.5,
                    label=f"front, {dataflow}" if chosen else None,
                )
            cell.set(xscale="log", yscale="log", xlabel=LABELS[across], ylabel=LABELS[up])
        cells[0].legend()
        figure.suptitle(f"{title}, {len(best)} on the Pareto front")
        save(figure, path)
