"""Pictures of runs: loss and accuracy over the epochs with the phases shaded, and the predictions' quality by site."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.errors import RunError
from adagp.figures.style import COLOURS, FAINT, SHADE, require_matplotlib, save, style, subplots
from adagp.run.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class History:
    """What pictures need of a run: its name, method and metrics by epoch."""

    name: str
    method: str
    rows: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> "History":
        """Return the history of the run in `path`; one without a finished epoch is refused."""
        folder = RunFolder.open(path)
        rows = folder.rows()
        if not rows:
            raise RunError(f"the run in '{path}' has no finished epoch yet: there is nothing to draw.")
        return cls(path.name, str(folder.read_json("config.json").get("method", "?")), rows)

    @property
    def epochs(self) -> list[int]:
        """The finished epochs, counted from 1."""
        return [row["epoch"] + 1 for row in self.rows]

    @property
    def shares(self) -> list[float]:
        """The share of GP batches in each epoch."""
        counts = (row["batches"] for row in self.rows)
        return [(one["gp"] + one["guarded"]) / (one["bp"] + one["gp"] + one["guarded"]) for one in counts]


def draw(paths: Sequence[Path], out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw the runs in `paths` into the folder `out` and return the files written."""
    require_matplotlib()
    histories = [History.read(path) for path in paths]
    out.mkdir(parents=True, exist_ok=True)
    with style():
        figures = {"curves": curves(histories)}
        for history in histories:
            if any(figures_of(row, "cosine") for row in history.rows):
                figures[f"sites-{history.name}"] = site_cosines(history)
        return [save(figure, out / f"{name}.{ending}") for name, figure in figures.items() for ending in formats]


def curves(histories: Sequence[History]) -> "Figure":
    """Return training loss and test accuracy of all runs; epochs are shaded by their share of GP batches."""
    figure, axes = _epochs()
    for axis, key, title in zip(axes, ("train_loss", "test_accuracy"), ("training loss", "test accuracy"), strict=True):
        for place, history in enumerate(histories):
            values = [row[key] for row in history.rows]
            colour = COLOURS[place % len(COLOURS)]
            axis.plot(history.epochs, values, color=colour, label=history.name, linewidth=1.8)
        axis.set(xlabel="epoch", title=title)
    shaded = max(histories, key=lambda history: sum(history.shares))
    for axis in axes:
        _shade(axis, shaded)
    if sum(shaded.shares):
        figure.supxlabel(f"shade: share of GP batches in {shaded.name}, its ratio on top", fontsize=8, color=FAINT)
    axes[0].legend()
    return figure


def site_cosines(history: History) -> "Figure":
    """Return the cosine of predicted with true gradients by site, and beside it that of the last true gradient."""
    figure, axes = _epochs(share_y=True)
    names = list(history.rows[-1]["sites"])
    titles = {
        "cosine": "predicted gradient against the truth",
        "cosine_previous": "last true gradient against the next",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for place, name in enumerate(names):
            values = [row["sites"][name][key] for row in history.rows]
            known = [(epoch, value) for epoch, value in zip(history.epochs, values, strict=True) if value is not None]
            if known:
                colour = _gradation(place, len(names))
                axis.plot(*zip(*known, strict=True), color=colour, linewidth=1.5, label=name)
        axis.axhline(0, color=FAINT, linewidth=0.8)
        axis.set(xlabel="epoch", title=title)
        _shade(axis, history)
    axes[0].set_ylabel("cosine similarity")
    if len(names) <= 12:
        axes[1].legend(title="site", ncols=2 if len(names) > 6 else 1, fontsize=8)
    else:
        figure.supxlabel("dark: first site; bright: last site", fontsize=8, color=FAINT)
    return figure


def figures_of(row: dict[str, Any], key: str) -> list[float]:
    """Return one figure of merit of all sites of an epoch that have it."""
    return [figures[key] for figures in row["sites"].values() if figures[key] is not None]


def _epochs(*, share_y: bool = False) -> "tuple[Figure, list[Axes]]":
    """Return a figure with two pictures side by side, over whole epochs."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = subplots(1, 2, (10.4, 3.8), share_y=share_y)
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _shade(axis: "Axes", history: History) -> None:
    """Shade each epoch by its share of GP batches, and write each new ratio above the first epoch that has it."""
    before = ""
    for row, epoch, share in zip(history.rows, history.epochs, history.shares, strict=True):
        if share:
            axis.axvspan(epoch - 0.5, epoch + 0.5, color=SHADE, alpha=0.3 * share, linewidth=0)
        if row["label"] != before and sum(history.shares):
            axis.annotate(
                row["label"], (epoch - 0.5, 1.0), xycoords=("data", "axes fraction"), fontsize=7, va="top", rotation=90
            )
        before = row["label"]


def _gradation(place: int, count: int) -> Any:
    import matplotlib as mpl

    return mpl.colormaps["viridis"](0.9 * place / max(1, count - 1))
