"""Figures of simulated accelerators: cycles, traffic and energy by layer, speed-up, roofline, Pareto fronts, memory over time,
and training on many chips.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.hw.explore import OBJECTIVES, Point
from adagp.hw.memory import Moment, peak
from adagp.hw.report import layer_rows, operational_intensity
from adagp.hw.simulate import Simulation
from adagp.pipe.chips import TERM_NAMES, TERMS
from adagp.program.figures.style import (
    COLOURS,
    GREY,
    PHASE_COLOURS,
    check_picture_path,
    legend_beside,
    mark_better,
    save,
    some_of,
    style,
    subplots,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ENERGY_PARTS = ("dram", "buffer", "predictor_memory", "network", "registers", "arithmetic", "clock", "leakage")
"""Components of the energy, in the order of the bars."""
_LEVEL_COLOURS = dict(zip(ENERGY_PARTS, (*COLOURS, GREY), strict=True))
LONGEST_NAME = 22
"""Most characters of a layer's label; longer names lose their beginning."""
NEAR = 0.25
"""Relative distance below which two points of the roofline share a label."""
MOST_NAMED = 24
"""Most layers with a label below the axis; of more, every Nth has one."""


def plot_simulation(simulation: Simulation, path: Path) -> None:
    """Draw all panels of one simulation into `path`."""
    check_picture_path(path)
    accelerator = simulation.accelerator
    with style():
        figure, axes = subplots(2, 3, (20, 9.5))
        _by_layer(axes[0][0], simulation)
        _energy(axes[0][1], simulation)
        _roofline(axes[0][2], simulation)
        rows = layer_rows(simulation)
        _traffic(axes[1][0], rows)
        _joules(axes[1][1], rows)
        _draw_designs(axes[1][2], _speedups_of(simulation))
        figure.suptitle(
            f"{simulation.workload.name}, {accelerator.dataflow} on {accelerator.array} PEs, batch {simulation.run.batch}: "
            "modelled; cost only, not accuracy"
        )
        save(figure, path)


def plot_speedups(speedups: Mapping[str, Mapping[str, float]], title: str, path: Path) -> None:
    """Draw `speedups[model][design]` as bars into `path`."""
    check_picture_path(path)
    with style():
        figure, axes = subplots(1, 1, (13, 5))
        _speedups(axes[0][0], speedups)
        axes[0][0].set_title(title)
        save(figure, path)


def _speedups_of(simulation: Simulation) -> dict[str, float]:
    return {name: simulation.speedup(name) for name in simulation.outcomes}


def _by_layer(axes: "Axes", simulation: Simulation) -> None:
    """Draw the cycles of each layer in the whole run, by phase: the baseline next to a predicting design."""
    _stack_phases(axes, simulation, "baseline", -0.2)
    _stack_phases(axes, simulation, _predicting_design(simulation), 0.2)
    axes.bar([0], [0], color="#d3d3d3", label="baseline")
    tallest = max(cost.cycles for layer in simulation.baseline.by_layer for cost in layer.values())
    axes.set(ylabel="cycles in the run", title="Cycles by layer", ylim=(0, 1.05 * tallest))
    name_layers(axes, [stage.layer.name for stage in simulation.stages])
    legend_beside(axes)


def _predicting_design(simulation: Simulation) -> str:
    """Return the design to draw next to the baseline; the baseline itself if no other was simulated."""
    others = [name for name in simulation.outcomes if name != "baseline"]
    return "efficient" if "efficient" in others else next(iter(others), "baseline")


def _stack_phases(axes: "Axes", simulation: Simulation, design: str, offset: float) -> None:
    """Draw a bar for each layer of a design, stacked by phase; the baseline's are grey and without labels."""
    layers = simulation.outcomes[design].by_layer
    positions = [index + offset for index in range(len(simulation.stages))]
    bottom = [0] * len(positions)
    for phase, colour in PHASE_COLOURS.items():
        heights = [_phase_cycles(layer, phase) for layer in layers]
        label = f"{design}, {phase}" if any(heights) else None
        shade, label = ("#d3d3d3", None) if design == "baseline" else (colour, label)
        axes.bar(positions, heights, 0.4, bottom=bottom, color=shade, label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]


def name_layers(axes: "Axes", names: Sequence[str]) -> None:
    """Label the layers below the axis; in a deep model, every Nth."""
    named = some_of(len(names), MOST_NAMED)
    texts = [
        names[index] if len(names[index]) <= LONGEST_NAME else f"…{names[index][-LONGEST_NAME:]}" for index in named
    ]
    axes.set_xticks(list(named), texts, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    if len(named) < len(names):
        axes.set_xlabel(f"layer; every {_ordinal(named.step)} of {len(names)} is named", fontsize=8)


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _phase_cycles(layer: Mapping[Any, Any], name: str) -> int:
    return next((cost.cycles for phase, cost in layer.items() if str(phase) == name), 0)


def _speedups(axes: "Axes", speedups: Mapping[str, Mapping[str, float]]) -> None:
    designs = list(dict.fromkeys(design for row in speedups.values() for design in row))
    width = 0.8 / len(designs)
    for number, design in enumerate(designs):
        positions = [index - 0.4 + (number + 0.5) * width for index in range(len(speedups))]
        bars = axes.bar(positions, [row.get(design, 0.0) for row in speedups.values()], width, label=design)
        several = len(speedups) > 1
        axes.bar_label(bars, fmt="%.2f", rotation=90 if several else 0, padding=3, fontsize=7 if several else 9)
    turned = len(speedups) > 3
    axes.set_xticks(
        range(len(speedups)), list(speedups), rotation=30 if turned else 0, ha="right" if turned else "center"
    )
    highest = max((value for row in speedups.values() for value in row.values()), default=1.0)
    axes.set(ylabel="speed-up over the baseline", title="Speed-up", ylim=(0, max(2.0, 1.15 * highest)))
    legend_beside(axes)


def _draw_designs(axes: "Axes", speedups: Mapping[str, float]) -> None:
    """Draw the speed-ups of one model: the baseline in grey, the other designs in one colour."""
    colours = [GREY if design == "baseline" else COLOURS[0] for design in speedups]
    bars = axes.bar(list(speedups), list(speedups.values()), color=colours)
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
    axes.set(ylabel="speed-up over the baseline", title="Speed-up", ylim=(0, max(2.0, 1.15 * max(speedups.values()))))


def _energy(axes: "Axes", simulation: Simulation) -> None:
    names = list(simulation.outcomes)
    bottom = [0.0] * len(names)
    for part in ENERGY_PARTS:
        heights = [outcome.energy.by_level[part] for outcome in simulation.outcomes.values()]
        axes.bar(names, heights, bottom=bottom, color=_LEVEL_COLOURS[part], label=part.replace("_", " "))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(ylabel="joules in the run", title="Energy", ylim=(0, 1.05 * max(bottom)))
    legend_beside(axes, reverse=True)


def _roofline(axes: "Axes", simulation: Simulation) -> None:
    """Draw the forward pass of each layer: MACs per cycle against MACs per off-chip byte.

    The layers' numbers are those of their order; layers at the same point share a label.
    """
    accelerator = simulation.accelerator
    costs = [accelerator.with_stalls(stage.forward) for stage in simulation.stages]
    reached = [cost.macs / cost.cycles for cost in costs]
    intensity = [operational_intensity(cost) for cost in costs]
    axes.scatter(intensity, reached, s=12, color=COLOURS[0])
    span = [min(*intensity, 1.0), max(intensity)]
    points = sorted({*span, min(max(8 * accelerator.array.pes / accelerator.bits_per_cycle, span[0]), span[1])})
    roof = [min(accelerator.array.pes, point * accelerator.bits_per_cycle / 8) for point in points]
    axes.plot(points, roof, color="black", linewidth=1)
    axes.annotate(
        f"{accelerator.array.pes} PEs",
        (points[-1], roof[-1]),
        xytext=(-4, 5),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    for (x, y), numbers in _same_points(intensity, reached).items():
        axes.annotate(_number_ranges(numbers), (x, y), xytext=(5, -9), textcoords="offset points", fontsize=8)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="MACs per off-chip byte; the numbers count the layers from 1",
        ylabel="MACs per cycle",
        title="Roofline, forward pass",
        ylim=(min(*reached, roof[0]) / 1.5, 1.5 * accelerator.array.pes),
    )
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)


def _same_points(horizontal: Sequence[float], vertical: Sequence[float]) -> dict[tuple[float, float], list[int]]:
    """Return the numbers of the layers (from 1) at each point; points closer than a label count as one."""
    groups: dict[tuple[float, float], list[int]] = {}
    for number, (x, y) in enumerate(zip(horizontal, vertical, strict=True), start=1):
        near = [at for at in groups if abs(at[0] / x - 1) < NEAR and abs(at[1] / y - 1) < NEAR]
        groups.setdefault(near[0] if near else (x, y), []).append(number)
    return groups


def _number_ranges(numbers: Sequence[int]) -> str:
    """Return `2, 4-6` for 2, 4, 5 and 6."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in ranges)


def _traffic(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the bytes of each layer in one BP batch by memory level, with the layers that memory stalls."""
    positions = range(len(rows))
    for level, label in (("buffer", "global buffer"), ("dram", "off-chip")):
        axes.plot(positions, [row[f"{level}_bytes"] / 1e6 for row in rows], marker=".", label=label)
    for level, cause, mark in (("dram", "off-chip", "x"), ("buffer", "buffer port", "+")):
        stalled = [index for index, row in zip(positions, rows, strict=True) if cause in row["stall_cause"]]
        if stalled:
            heights = [rows[index][f"{level}_bytes"] / 1e6 for index in stalled]
            axes.plot(stalled, heights, mark, color="black", label=f"stalled: {cause}")
    axes.set(ylabel="MB in a batch", yscale="log", title="Traffic by layer, one BP batch")
    name_layers(axes, [row["name"] for row in rows])
    legend_beside(axes)


def _joules(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    bottom = [0.0] * len(rows)
    for part in ENERGY_PARTS:
        heights = [row["energy"][part] for row in rows]
        axes.bar(range(len(rows)), heights, bottom=bottom, color=_LEVEL_COLOURS[part])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(ylabel="joules in a batch", title="Energy by layer, one BP batch; colours as above")
    name_layers(axes, [row["name"] for row in rows])


LABELS = {
    "cycles": "cycles of the run",
    "seconds": "seconds of the run",
    "energy": "joules of the run",
    "area": "square millimetres",
    "dram": "off-chip bytes of the run",
}


def plot_front(
    points: Sequence[Point], front: Sequence[bool], objectives: Sequence[str], title: str, path: Path
) -> None:
    """Draw all points in grey, and those of the Pareto front in the colour of their dataflow."""
    check_picture_path(path)
    pairs = list(combinations(objectives, 2))
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    with style():
        figure, axes = subplots(rows, columns, (5.2 * columns, 4.6 * rows))
        cells = [cell for row in axes for cell in row]
        for cell in cells[len(pairs) :]:
            cell.set_axis_off()
        best = [point for point, on in zip(points, front, strict=True) if on]
        for cell, pair in zip(cells, pairs, strict=False):
            _front_panel(cell, points, best, pair)
        legend_beside(cells[columns - 1])
        figure.suptitle(f"{title}, {len(best)} on the Pareto front")
        save(figure, path)


def _front_panel(axes: "Axes", points: Sequence[Point], best: Sequence[Point], pair: Sequence[str]) -> None:
    _scatter(axes, points, pair, s=5, color="#c4c8cc", linewidths=0, label="dominated")
    for number, dataflow in enumerate(dict.fromkeys(point.settings["dataflow"] for point in points)):
        chosen = [point for point in best if point.settings["dataflow"] == dataflow]
        label = f"front, {dataflow}" if chosen else None
        colour = COLOURS[number % len(COLOURS)]
        _scatter(axes, chosen, pair, s=20, color=colour, edgecolors="white", linewidths=0.5, label=label)
    axes.set(xscale="log", yscale="log", xlabel=LABELS[pair[0]], ylabel=LABELS[pair[1]])
    axes.margins(0.15)  # the arrow has the corner to itself
    mark_better(axes, "left", "below")


def _scatter(axes: "Axes", points: Sequence[Point], objectives: Sequence[str], **options: Any) -> None:
    horizontal, vertical = ([getattr(point, OBJECTIVES[name]) for point in points] for name in objectives)
    axes.scatter(horizontal, vertical, **options)


PARTS = (("fixed", "weights, state, gradients"), ("kept", "kept for later"), ("working", "in use"))


def plot_memory(curves: Mapping[str, Sequence[Moment]], title: str, path: Path) -> None:
    """Draw each step as a stack of areas over its cycles, on one scale."""
    check_picture_path(path)
    most = max(peak(moments).bytes for moments in curves.values()) / 1e6
    longest = max(moments[-1].cycle for moments in curves.values())
    with style():
        figure, axes = subplots(1, len(curves), (8 * len(curves), 5))
        for panel, (name, moments) in zip(axes[0], curves.items(), strict=True):
            cycles = [moment.cycle for moment in moments]
            sizes = [[getattr(moment, part) / 1e6 for moment in moments] for part, _ in PARTS]
            labels = [label for _, label in PARTS]
            panel.stackplot(cycles, sizes, labels=labels, colors=COLOURS[: len(PARTS)], step="post")
            panel.set(
                title=f"{name}: at most {peak(moments).bytes / 1e6:,.0f} MB",
                xlabel="cycles",
                ylabel="MB off chip",
                ylim=(0, 1.05 * most),
                xlim=(0, longest),
            )
        legend_beside(axes[0][-1])
        figure.suptitle(title)
        save(figure, path)


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
            axis.bar(
                range(len(shown)), heights, bottom=bottoms, color=TERM_COLOURS[term], label=TERM_NAMES[term], width=0.6
            )
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
