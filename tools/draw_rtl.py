"""Draw the pictures of docs/rtl.md: modules by area, and the array as it fills and drains.

python -m tools.draw_rtl docs/images
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from adagp.hw.dataflows import Array
from adagp.program.figures.style import save, style, subplots
from adagp.rtl.blueprint import DESIGNS, make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.products import check_product
from adagp.rtl.synthesis import ChipReport, parse_target, synthesize


def draw_floor(path: Path) -> None:
    """Draw LUTs by kind of module, a square for each design; the area of a rectangle is its share."""
    figure, axes = subplots(1, 4, (12, 3.6))
    totals = {}
    for axis, design in zip(axes[0], DESIGNS, strict=True):
        blueprint = make_blueprint(design, Array(12, 15), FORMATS["int16"], predictor_array=Array(8, 10))
        totals[design] = report = synthesize(blueprint, parse_target("xc7"))
        side = (report.totals["lut"] / totals["baseline"].totals["lut"]) ** 0.5
        _tiles(axis, report, side)
        axis.set(title=f"{design}: {report.totals['lut']:,.0f} LUTs", xlim=(0, 1.25), ylim=(0, 1.25), aspect="equal")
        axis.axis("off")
    figure.supxlabel(
        "one scale for all: areas are proportional to LUTs (xc7, 12x15 PEs of 16 bits, predictor's array 8x10)",
        fontsize=8,
    )
    save(figure, path)


def _tiles(axis: Any, report: ChipReport, side: float) -> None:
    luts = {kind: one["lut"] * report.counts[kind] for kind, one in report.modules.items()}
    groups = {
        "PEs": luts.pop("element"),
        "lanes": sum(luts.pop(kind) for kind in list(luts) if "lane" in kind),
        "control and element units": sum(luts.values()),
    }
    bottom, whole = 0.0, sum(groups.values())
    for place, (name, value) in enumerate(groups.items()):
        height = side * value / whole
        axis.add_patch(Rectangle((0, bottom), side, height, facecolor=f"C{place}", edgecolor="white", alpha=0.8))
        label = f"{name} {value / whole:.0%}"
        axis.text(side / 2, bottom + height / 2, label, ha="center", va="center", fontsize=7)
        bottom += height


def draw_wave(path: Path) -> None:
    """Draw which PEs multiply in each cycle of a product with two folds, read from the waveforms of a simulation."""
    array = Array(4, 4)
    blueprint = make_blueprint("baseline", array, FORMATS["int8"], value_words=64, sum_words=64, program_words=4)
    with tempfile.TemporaryDirectory() as folder:
        wave = Path(folder) / "wave.vcd"
        report = check_product(blueprint, "ws", "forward", (6, 8, 4), vcd=wave)
        steps, tags = _read(wave, array)
    first = int(np.flatnonzero((steps | tags).any(axis=0))[0])
    steps, tags = steps[:, first:], tags[:, first:]
    shown = np.where(steps, 2, np.where(tags, 1, 0))[:, : report["cycles"] + 4]
    figure, axes = subplots(1, 1, (10, 3.6))
    axes[0][0].imshow(shown, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=2)
    axes[0][0].axvline(report["cycles"] - 0.5, color="C3", linewidth=1)
    axes[0][0].set(
        xlabel="cycle",
        ylabel="PE (row, column)",
        title=f"ws forward, 6 x 8 by 8 x 4 on 4 x 4 PEs: {report['cycles']} cycles (red line); light: loads, dark: multiplies",
        yticks=range(0, 16, 4),
        yticklabels=[f"({row}, 0)" for row in range(4)],
    )
    save(figure, path)


def _read(wave: Path, array: Array) -> tuple[Any, Any]:
    """Return for each PE and cycle whether it multiplies, and whether a word to keep passes."""
    names: dict[str, list[tuple[str, int]]] = {}
    scope: list[str] = []
    events: list[tuple[int, str, int, bool]] = []
    now = 0
    for line in wave.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if line.strip().startswith("$scope"):
            scope.append(words[2])
        elif line.strip().startswith("$upscope"):
            scope.pop()
        elif line.strip().startswith("$var") and words[4] in ("step", "tag") and scope[-1].startswith("element_"):
            place = scope[-1].split("_")[1:]
            if all(part.isdigit() for part in place):
                row, column = map(int, place)
                names.setdefault(words[3], []).append((words[4], row * array.columns + column))
        elif line.startswith("#"):
            now = int(line[1:])
        elif line[:1] in ("0", "1") and line[1:] in names:
            events += [(now // 10, name, place, line[0] == "1") for name, place in names[line[1:]]]
    found = {name: np.zeros((array.pes, now // 10 + 2), bool) for name in ("step", "tag")}
    for cycle, name, pe, value in events:
        found[name][pe, cycle:] = value
    return found["step"], found["tag"]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    with style():
        draw_floor(target / "rtl-floor.png")
        draw_wave(target / "rtl-wave.png")
    print(f"written: {target}/rtl-floor.png, {target}/rtl-wave.png")
