"""Figures of runs: loss and metric over epochs with GP epochs shaded, and the quality of predictions by site."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.errors import RunError
from adagp.program.figures.style import (
    FAINT,
    MANY_COLOURS,
    SHADE,
    legend_beside,
    require_matplotlib,
    save,
    series_colour,
    some_of,
    style,
    subplots,
    whole_numbers,
)
from adagp.program.run.record import RunRecord, collect_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_NAMED = 14
"""Most sites in the legend; of more, every Nth."""
MOST_MARKED = 5
"""Longest run in epochs whose points are marked."""
DASHES = ("-", "--", ":")
"""Line styles for successive rounds through the colours."""


def draw(paths: Sequence[Path], out: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw the runs at or below `paths` into the folder `out`; return the files."""
    require_matplotlib()
    runs = collect_whole(paths, "draw")
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        names = ", ".join(metric.words for metric in metrics)
        raise RunError(f"the runs have different metrics ({names}); draw them separately.")
    out.mkdir(parents=True, exist_ok=True)
    with style():
        figures = {"curves": curves(runs)}
        for run in runs:
            if any(epoch.over_sites("cosine") for epoch in run.epochs):
                figures[f"sites-{run.name.replace('/', '-')}"] = site_cosines(run)
        return [save(figure, out / f"{name}.{ending}") for name, figure in figures.items() for ending in formats]


def curves(runs: Sequence[RunRecord]) -> "Figure":
    """Return training loss and test metric of all runs; epochs are shaded by the share of GP batches."""
    figure, axes = _epochs()
    titles = {"train_loss": "training loss", "test_value": f"test {runs[0].metric.words}"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for index, run in enumerate(runs):
            values: list[Any] = [getattr(epoch, name) for epoch in run.epochs]
            numbers, marker = [epoch.number for epoch in run.epochs], _marker(run)
            dashes = DASHES[index // len(MANY_COLOURS) % len(DASHES)]
            look: dict[str, Any] = {"color": series_colour(index), "marker": marker, "linestyle": dashes}
            axis.plot(numbers, values, label=run.name, linewidth=1.8, **look)
        axis.set(xlabel="epoch", title=title)
        axis.set_xlim(0.5, max(run.epochs[-1].number for run in runs) + 0.5)
    shaded = max(runs, key=_predicted)
    for axis in axes:
        _shade(axis, shaded)
    if _predicted(shaded):
        figure.supxlabel(f"shade: share of GP batches in {shaded.name}, its ratio on top", fontsize=8, color=FAINT)
    legend_beside(axes[1])
    return figure


def site_cosines(run: RunRecord) -> "Figure":
    """Return the cosine of predicted and true gradients by site, next to the previous-gradient baseline."""
    figure, axes = _epochs(share_y=True)
    names = list(run.epochs[-1].sites)
    named = some_of(len(names), MOST_NAMED)
    titles = {
        "cosine": "predicted against true gradient",
        "cosine_previous": "previous against true gradient (baseline)",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for index, name in enumerate(names):
            values = [(epoch.number, epoch.sites.get(name, {}).get(key)) for epoch in run.epochs]
            known = [(epoch, value) for epoch, value in values if value is not None]
            if known:
                colour = _gradation(index, len(names))
                label = name if index in named else None
                axis.plot(*zip(*known, strict=True), color=colour, linewidth=1.5, label=label, marker=_marker(run))
        axis.axhline(0, color=FAINT, linewidth=0.8)
        axis.set(xlabel="epoch", title=title, xlim=(0.5, run.epochs[-1].number + 0.5))
        _shade(axis, run)
    axes[0].set_ylabel("cosine similarity")
    legend_beside(axes[1], title="site" if len(named) == len(names) else f"some of {len(names)} sites")
    return figure


def _predicted(run: RunRecord) -> float:
    return sum(epoch.predicted_share for epoch in run.epochs)


def _epochs(*, share_y: bool = False) -> "tuple[Figure, list[Axes]]":
    figure, (axes,) = subplots(1, 2, (11.6, 3.8), share_y=share_y)
    for axis in axes:
        whole_numbers(axis.xaxis)
    return figure, axes


def _marker(run: RunRecord) -> str:
    """Return the marker of a run's epochs: dots for a short run, as a single epoch makes no line."""
    return "o" if len(run.epochs) <= MOST_MARKED else ""


def _shade(axis: "Axes", run: RunRecord) -> None:
    """Shade each epoch by its share of GP batches, and write the ratio where it changes."""
    previous_label = ""
    for epoch in run.epochs:
        left, share = epoch.number - 0.5, epoch.predicted_share
        if share:
            axis.axvspan(left, left + 1, color=SHADE, alpha=0.3 * share, linewidth=0)
        if epoch.label != previous_label and _predicted(run):
            axis.annotate(
                epoch.label, (left, 1.0), xycoords=("data", "axes fraction"), fontsize=7, va="top", rotation=90
            )
        previous_label = epoch.label


def _gradation(index: int, count: int) -> Any:
    import matplotlib as mpl

    return mpl.colormaps["viridis"](0.9 * index / max(1, count - 1))
