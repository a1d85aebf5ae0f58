"""Bars side by side: the one way in which experiments draw several series over the same labels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def grouped_bars(
    axes: "Axes", labels: Sequence[str], series: Mapping[str, Sequence[float]], *, turned: bool = True
) -> None:
    """Draw for each label one bar of every series, with a legend."""
    width = 0.8 / len(series)
    for number, (name, heights) in enumerate(series.items()):
        places = [index - 0.4 + (number + 0.5) * width for index in range(len(labels))]
        axes.bar(places, heights, width, label=name)
    axes.set_xticks(
        range(len(labels)), labels, rotation=60 if turned else 0, ha="right" if turned else "center", fontsize=8
    )
    axes.legend(ncols=min(3, len(series)), loc="best")
