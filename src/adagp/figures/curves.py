"""Pictures of runs: loss and metric over the epochs with the phases shaded, and the predictions' quality by site."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.errors import RunError
from adagp.figures.style import COLOURS, FAINT, SHADE, require_matplotlib, save, style, subplots
from adagp.run.record import RunRecord, read_whole_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(paths: Sequence[Path], out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw the runs in `paths` into the folder `out` and return the files written."""
    require_matplotlib()
    runs = [read_whole_run(path, "draw") for path in paths]
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        found = ", ".join(metric.words for metric in metrics)
        raise RunError(f"the runs have no metric in common ({found}): draw them in pictures of their own.")
    out.mkdir(parents=True, exist_ok=True)
    with style():
        figures = {"curves": curves(runs)}
        for run in runs:
            if any(epoch.over_sites("cosine") for epoch in run.epochs):
                figures[f"sites-{run.name}"] = site_cosines(run)
        return [save(figure, out / f"{name}.{ending}") for name, figure in figures.items() for ending in formats]


def curves(runs: Sequence[RunRecord]) -> "Figure":
    """Return training loss and test metric of all runs; epochs are shaded by their share of GP batches."""
    figure, axes = _epochs()
    titles = {"train_loss": "training loss", "test_value": f"test {runs[0].metric.words}"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for place, run in enumerate(runs):
            values: list[Any] = [getattr(epoch, name) for epoch in run.epochs]
            colour = COLOURS[place % len(COLOURS)]
            axis.plot([epoch.number for epoch in run.epochs], values, color=colour, label=run.name, linewidth=1.8)
        axis.set(xlabel="epoch", title=title)
    shaded = max(runs, key=_predicted)
    for axis in axes:
        _shade(axis, shaded)
    if _predicted(shaded):
        figure.supxlabel(f"shade: share of GP batches in {shaded.name}, its ratio on top", fontsize=8, color=FAINT)
    axes[0].legend()
    return figure


def site_cosines(run: RunRecord) -> "Figure":
    """Return the cosine of predicted with true gradients by site, and beside it that of the last true gradient."""
    figure, axes = _epochs(share_y=True)
    names = list(run.epochs[-1].sites)
    titles = {
        "cosine": "predicted gradient against the truth",
        "cosine_previous": "last true gradient against the next",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for place, name in enumerate(names):
            values = [(epoch.number, epoch.sites.get(name, {}).get(key)) for epoch in run.epochs]
            known = [(epoch, value) for epoch, value in values if value is not None]
            if known:
                colour = _gradation(place, len(names))
                axis.plot(*zip(*known, strict=True), color=colour, linewidth=1.5, label=name)
        axis.axhline(0, color=FAINT, linewidth=0.8)
        axis.set(xlabel="epoch", title=title)
        _shade(axis, run)
    axes[0].set_ylabel("cosine similarity")
    if len(names) <= 12:
        axes[1].legend(title="site", ncols=2 if len(names) > 6 else 1, fontsize=8)
    else:
        figure.supxlabel("dark: first site; bright: last site", fontsize=8, color=FAINT)
    return figure


def _predicted(run: RunRecord) -> float:
    """Return the shares of GP batches, added up over the epochs."""
    return sum(epoch.predicted_share for epoch in run.epochs)


def _epochs(*, share_y: bool = False) -> "tuple[Figure, list[Axes]]":
    """Return a figure with two pictures side by side, over whole epochs."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = subplots(1, 2, (10.4, 3.8), share_y=share_y)
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _shade(axis: "Axes", run: RunRecord) -> None:
    """Shade each epoch by its share of GP batches, and write each new ratio above the first epoch that has it."""
    before = ""
    for epoch in run.epochs:
        left, share = epoch.number - 0.5, epoch.predicted_share
        if share:
            axis.axvspan(left, left + 1, color=SHADE, alpha=0.3 * share, linewidth=0)
        if epoch.label != before and _predicted(run):
            axis.annotate(
                epoch.label, (left, 1.0), xycoords=("data", "axes fraction"), fontsize=7, va="top", rotation=90
            )
        before = epoch.label


def _gradation(place: int, count: int) -> Any:
    import matplotlib as mpl

    return mpl.colormaps["viridis"](0.9 * place / max(1, count - 1))
