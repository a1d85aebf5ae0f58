"""The common style of figures, and how to create and save them. Needs matplotlib (`pip install 'adagp[plot]'`).

The colours are those of Okabe and Ito, which colour-blind readers can distinguish, and further ones for more series that are
distinct from them on white and on black.
"""

import importlib.util
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.escape import shown
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
        raise OptionError("figures need matplotlib, which is not installed: pip install 'adagp[plot]'.")


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
    from matplotlib.ticker import LogFormatter

    for text in figure.findobj(Text):
        text.set_text(shown(text.get_text(), lines=True))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":  # its default labels need math text
                axis.set_major_formatter(LogFormatter())
                axis.set_minor_formatter(LogFormatter())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        content, kind = BytesIO(), path.suffix.removeprefix(".")
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    publish(path, content.getvalue())
    return path
