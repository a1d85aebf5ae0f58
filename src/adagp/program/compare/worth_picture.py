"""The break-even as one picture: for each method the worth of a GP batch as a band, and the platforms' break-evens as marks."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.program.compare.worth import PAYS, PAYS_NOT, UNCLEAR
from adagp.program.figures.labels import spread
from adagp.program.figures.style import COLOURS, FAINT, save, style, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]
VERDICTS = {PAYS: (COLOURS[2], "o"), UNCLEAR: (COLOURS[4], "s"), PAYS_NOT: (COLOURS[1], "X")}
LABEL_HEIGHT = 10.0
"""Points between the lines of two labels."""


def draw_worth(worth: Record, path: Path) -> Path:
    """Draw the picture into `path`: a panel for each method."""
    methods = worth["methods"]
    with style():
        figure, axes = subplots(1, len(methods), (1.2 + 3.6 * len(methods), 5.2))
        for axis, (name, one) in zip(axes[0], methods.items(), strict=True):
            _panel(axis, one)
            axis.set(title=name, ylabel="batches by plain backprop", xticks=[])
        figure.supxlabel(
            "band: worth of a GP batch, 95% interval\nmarks: the worth from which on it pays on a platform\n"
            "green: pays, yellow: too close to say, red: does not pay",
            fontsize=8,
            color=FAINT,
        )
        return save(figure, path)


def _panel(axis: "Axes", method: Record) -> None:
    low, high = method["interval"]
    ends = [end for end in (low, high, method["worth"]) if end is not None]
    marks = {name: one["break_even"] for name, one in method["platforms"].items()}
    top = 1.15 * max([1.0, *ends, *marks.values()])
    bottom = min([0.0, *ends])
    axis.set(xlim=(0, 1), ylim=(bottom - 0.05 * top, top))
    if ends:
        below, above = bottom - top if low is None else low, top if high is None else high
        axis.axhspan(below, above, color=COLOURS[0], alpha=0.18, linewidth=0)
    if method["worth"] is not None:
        axis.axhline(method["worth"], color=COLOURS[0], linewidth=1.5)
    axis.figure.canvas.draw()  # fixes the scale
    scale = 72 / axis.figure.dpi
    places = {name: float(axis.transData.transform((0, value))[1]) * scale for name, value in marks.items()}
    heights = spread([(place, name) for name, place in places.items()], LABEL_HEIGHT)
    for name, value in marks.items():
        colour, marker = VERDICTS[method["platforms"][name]["verdict"]]
        axis.plot(0.2, value, marker=marker, color=colour, markersize=6)
        axis.annotate(
            f"{name} {value:.2f}",
            (0.2, value),
            xytext=(22, heights[name] - places[name]),
            textcoords="offset points",
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.4},
        )
