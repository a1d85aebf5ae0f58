"""Gantt charts of a timeline, a row for each device: as text for a terminal, or as a figure."""

from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe.actions import BACKWARD, FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Action, Kind, Program
from adagp.pipe.timeline import Timeline
from adagp.program.figures.style import check_picture_path, save, style, subplots, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.text import Text

COLOURS = {
    "GP forward": "#E69F00",
    "BP forward": "#56B4E9",
    "backward": "#0072B2",
    "input gradient": "#004C77",
    "weight gradient": "#CC79A7",
    "update": "#009E73",
}
DARK = ("backward", "input gradient")
"""Actions whose bars are so dark that their labels are white."""
STYLES = {
    "GP forward": "black on bright_yellow",
    "BP forward": "black on bright_cyan",
    "backward": "white on blue",
    "input gradient": "white on blue",
    "weight gradient": "white on magenta",
    "update": "white on green",
}
_NAMES: dict[Kind, str] = {
    BACKWARD: "backward",
    INPUT_GRADIENT: "input gradient",
    WEIGHT_GRADIENT: "weight gradient",
    UPDATE: "update",
}
MOST_DRAWN = 20_000
"""Most actions in a figure: more would be narrower than a point and take minutes to draw."""
_MOST_LABELS = 400
"""Most actions in a figure whose bars are labelled."""


def what(timeline: Timeline, action: Action) -> str:
    """Return the legend label of an action."""
    if action.kind != FORWARD:
        return _NAMES[action.kind]
    predicted = timeline.program.phases[timeline.program.batch_of(action)] is Phase.GP
    return "GP forward" if predicted else "BP forward"


def text_gantt(timeline: Timeline, width: int) -> list["Text"]:
    """Return a line for each device, at most `width` characters wide.

    If all times are whole steps and they fit, every action is labelled. Otherwise each character stands for an interval and
    shows what the device does in its middle: F, B (or its parts I and W), U, or a dot for nothing.
    """
    columns = width - _margin(timeline)
    cell = 1 + max(len(_label(action)) for row in timeline.program.devices for action in row)
    whole = all(begin.is_integer() and end.is_integer() for row in timeline.spans for begin, end in row)
    if whole and cell * timeline.steps <= columns:
        return [_named(timeline, device, cell) for device in range(len(timeline.spans))]
    return [_sampled(timeline, device, columns) for device in range(len(timeline.spans))]


def gantt_legend(timeline: Timeline) -> str:
    """Return what the letters of `text_gantt` mean, those that occur."""
    rows = zip(timeline.program.devices, timeline.spans, strict=True)
    used = {action.kind for row, spans in rows for action, (begin, end) in zip(row, spans, strict=True) if end > begin}
    names = {FORWARD: "forward", **_NAMES}
    return ", ".join([*(f"{kind} {name}" for kind, name in names.items() if kind in used), ". idle"])


def _margin(timeline: Timeline) -> int:
    return len(str(len(timeline.spans) - 1)) + 2


def _label(action: Action) -> str:
    return f"{action.kind}{action.number}"


def _row(timeline: Timeline, device: int) -> "Text":
    from rich.text import Text

    return Text(f"{device:>{_margin(timeline) - 2}}: ", no_wrap=True, end="")


def _named(timeline: Timeline, device: int, cell: int) -> "Text":
    line, at = _row(timeline, device), 0.0
    for action, (begin, end) in zip(timeline.program.devices[device], timeline.spans[device], strict=True):
        if end > begin:
            line.append("." * int(cell * (begin - at)), style="dim")
            line.append(_label(action).ljust(int(cell * (end - begin))), style=STYLES[what(timeline, action)])
            at = end
    line.append("." * int(cell * (timeline.steps - at)), style="dim")
    return line


def _sampled(timeline: Timeline, device: int, columns: int) -> "Text":
    line = _row(timeline, device)
    spans = timeline.spans[device]
    begins = [begin for begin, _ in spans]
    for column in range(columns):
        time = (column + 0.5) * timeline.steps / columns
        index = bisect_right(begins, time) - 1
        if index < 0 or time >= spans[index][1]:
            line.append(".", style="dim")
        else:
            action = timeline.program.devices[device][index]
            line.append(action.kind, style=STYLES[what(timeline, action)])
    return line


def check_drawable(program: Program) -> None:
    """Raise if a program has too many actions to draw."""
    actions = sum(map(len, program.devices))
    if actions > MOST_DRAWN:
        raise OptionError(
            f"a pipeline of {actions:,} actions cannot be drawn; at most {MOST_DRAWN:,} can. Leave out --plot."
        )


def plot_gantt(timeline: Timeline, unit: str, path: Path) -> None:
    """Draw the timeline into `path`; `unit` names the unit of time."""
    check_picture_path(path)
    check_drawable(timeline.program)
    count = len(timeline.spans)
    with style():
        figure, axes = subplots(1, 1, (13, 1.5 + min(12, 0.5 * count)))
        _draw(axes[0][0], timeline, unit)
        save(figure, path)


def _draw(chart: "Axes", timeline: Timeline, unit: str) -> None:
    count = len(timeline.spans)
    labelled = sum(map(len, timeline.spans)) <= _MOST_LABELS
    for device in range(len(timeline.program.devices)):
        _draw_device(chart, timeline, device, labelled)
    chart.set(xlabel=unit, ylabel="device", ylim=(count - 0.5, -0.5), xlim=(0, timeline.steps or 1))
    if count <= 16:
        chart.set_yticks(range(count))
    whole_numbers(chart.xaxis)
    program = timeline.program
    phases = ",".join(phase.upper() for phase in program.phases[:8]) + (",..." if len(program.phases) > 8 else "")
    chart.set_title(f"{program.name}: {phases}, {timeline.steps:,.5g} {unit}, bubble {timeline.bubble_share:.1%}")
    chart.grid(visible=False)
    chart.legend(ncols=len(COLOURS), loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _draw_device(chart: "Axes", timeline: Timeline, device: int, labelled: bool) -> None:
    bars: dict[str, list[tuple[float, float]]] = {name: [] for name in COLOURS}
    for action, (begin, end) in zip(timeline.program.devices[device], timeline.spans[device], strict=True):
        bars[what(timeline, action)].append((begin, end - begin))
        if labelled and action.kind != UPDATE:
            colour = "white" if what(timeline, action) in DARK else "black"
            chart.text(
                (begin + end) / 2, device, str(action.number), ha="center", va="center", fontsize=8, color=colour
            )
    edge = "white" if labelled else "none"
    for name, spans in bars.items():
        if name == "update":
            _mark_updates(chart, spans, device)
        elif spans:
            label = name if device == 0 else None
            chart.broken_barh(spans, (device - 0.42, 0.84), facecolors=COLOURS[name], edgecolor=edge, label=label)


def _mark_updates(chart: "Axes", spans: list[tuple[float, float]], device: int) -> None:
    """Draw updates as lines: most cost models let them take no time, and a bar without a width is not seen."""
    times = [begin + length for begin, length in spans]
    if times:
        label = "update" if device == 0 else "_nolegend_"
        lines = chart.vlines(
            times, device - 0.46, device + 0.46, colors=COLOURS["update"], linewidth=2.5, zorder=3, label=label
        )
        lines.set_clip_on(False)  # the last update is at the edge
