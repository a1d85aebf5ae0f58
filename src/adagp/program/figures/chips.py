"""Figures of training on many chips: a batch term by term, and how it scales with the copies of the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.pipe.chips import TERMS
from adagp.program.figures.style import COLOURS, GREY, check_picture_path, legend_beside, save, style, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERM_COLOURS = dict(zip(TERMS, (COLOURS[0], GREY, *COLOURS[1:6]), strict=True))
BATCHES = (("backprop", "backprop"), ("BP and\nlearning", "bp"), ("GP", "gp"))


def plot_chips(report: Mapping[str, Any], path: Path) -> None:
    """Draw the report of a training on many chips: its terms and, if it has any, its scaling."""
    check_picture_path(path)
    scaled = report.get("scaling")
    with style():
        figure, (axes,) = subplots(1, 3 if scaled else 1, (15 if scaled else 6, 4.4))
        _draw_terms(axes[0], report)
        if scaled:
            _draw_times(axes[1], scaled["rows"])
            _draw_efficiency(axes[2], scaled["rows"], scaled["kind"])
        else:
            legend_beside(axes[0])
        figure.suptitle(
            f"{report['model']}, batch {report['batch']:,}, {report['chips']} chips ({report['parallel']}), "
            f"{report['fabric']}: modelled"
        )
        save(figure, path)


def _draw_terms(axis: "Axes", report: Mapping[str, Any]) -> None:
    shown = [(label, report[key]["terms"]) for label, key in BATCHES if key in report]
    bottoms = [0.0] * len(shown)
    for term in TERMS:
        heights = [max(0.0, terms[term]) * 1e3 for _, terms in shown]
        if any(heights):
            axis.bar(range(len(shown)), heights, bottom=bottoms, color=TERM_COLOURS[term], label=term, width=0.6)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axis.set_xticks(range(len(shown)), [label for label, _ in shown])
    axis.set(ylabel="milliseconds of a batch", title="a batch, term by term", ylim=(0, max(bottoms) * 1.3))
    axis.legend(loc="upper right", ncols=2, fontsize=8)


def _draw_times(axis: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    for number, (label, name) in enumerate((("backprop", "backprop"), ("BP and learning", "bp"), ("GP", "gp"))):
        _draw_line(axis, [row[f"{name}_seconds"] for row in rows], label, COLOURS[number], 1e3)
    axis.set_yscale("log")
    axis.set(ylabel="milliseconds of a batch", title="time")
    _label_chips(axis, rows)


def _draw_efficiency(axis: "Axes", rows: Sequence[Mapping[str, Any]], kind: str) -> None:
    for label, name, colour in (
        ("efficiency of backprop", "backprop_efficiency", COLOURS[0]),
        ("efficiency of GP", "gp_efficiency", COLOURS[2]),
        ("GP batch over backprop", "gp_to_backprop", COLOURS[1]),
    ):
        _draw_line(axis, [row[name] for row in rows], label, colour)
    axis.set(title=f"{kind} scaling")
    axis.set_ylim(bottom=0)
    _label_chips(axis, rows)


def _draw_line(axis: "Axes", values: Sequence[float | None], label: str, colour: str, unit: float = 1.0) -> None:
    known = [unit * value for value in values if value is not None]
    if len(known) == len(values):
        axis.plot(range(len(known)), known, "o-", color=colour, label=label)


def _label_chips(axis: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    axis.set_xticks(range(len(rows)), [f"{row['chips']:,}" for row in rows])
    axis.set_xlabel("chips")
    axis.legend()
