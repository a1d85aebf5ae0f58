"""Draw README's picture of the tuned comparisons: `python -m tools.draw_tuned`.

A row for each network, a column for each way to count cost: how many points of test accuracy a method is ahead of backprop at
equal cost, both with their own batch size and rate. Differences are paired by seed. The comparisons are those of docs/measured
whose batch sizes were tuned.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.fill_summary import EQUAL, MEASURED, network

from adagp.program.figures.style import COLOURS, FAINT, save, style, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = Path("docs/images/tuned-equal-cost.png")
REGIMES = ("seconds", "accelerator", "pipeline")
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}


def main() -> None:
    """Draw the picture."""
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(MEASURED.glob("*/report.json"))]
    tuned = [document for document in documents if len(document.get("backprop_batch_sizes", ())) > 1]
    with style():
        figure, rows = subplots(len(tuned), len(REGIMES), (11, 0.5 + 1.75 * len(tuned)), share_y=True)
        for axes, document in zip(rows, tuned, strict=True):
            for axis, regime in zip(axes, REGIMES, strict=True):
                draw(axis, document, regime)
            axes[0].set_ylabel(network(document), fontsize=9)
        ends = [axis.get_xlim() for axes in rows for axis in axes]
        for axes in rows:
            for axis in axes:
                axis.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
        for axis, regime in zip(rows[0], REGIMES, strict=True):
            axis.set_title(f"equal {EQUAL[regime]}", fontsize=10)
        note = (
            "points of test accuracy ahead of tuned backprop (the dashed line; right is better); bars: 95% interval, "
            "small dots: single seeds"
        )
        figure.supxlabel(note, fontsize=9, color=FAINT)
        save(figure, PICTURE)
    print(f"{PICTURE} is drawn.")


def draw(axes: "Axes", document: dict[str, Any], regime: str) -> None:
    """Draw each method of a comparison against backprop in one regime."""
    methods = {name: row for name, row in document["regimes"][regime]["methods"].items() if row["method"] != "bp"}
    runs = [run for run in document["runs"] if run["regime"] == regime]
    plain = {run["seed"]: run["accuracy"] for run in runs if run["name"] == document["reference"]}
    for place, (name, row) in enumerate(methods.items()):
        low, mean, high = (100 * row[f"ahead_{what}"] for what in ("low", "mean", "high"))
        axes.errorbar(mean, place, xerr=[[mean - low], [high - mean]], fmt="o", capsize=3, color=COLOURS[place + 1])
        seeds = [100 * (run["accuracy"] - plain[run["seed"]]) for run in runs if run["name"] == name]
        axes.plot(seeds, [place + 0.25] * len(seeds), ".", markersize=4, color=COLOURS[place + 1])
        axes.annotate(
            f"{mean:+.1f}", (mean, place), (0, 6), textcoords="offset points", ha="center", fontsize=8, bbox=ON_WHITE
        )
    axes.axvline(0, color=FAINT, linestyle="--", linewidth=1, zorder=1)
    axes.set_yticks(range(len(methods)), [name.split("@")[0] for name in methods])
    axes.set_ylim(len(methods) - 0.4, -0.7)


if __name__ == "__main__":
    main()
