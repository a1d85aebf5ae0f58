"""Grouped bar charts of several series over the same labels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from adagp.program.figures.style import COLOURS, legend_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
