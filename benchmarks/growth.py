"""How time and memory of a batch grow with the batch, the model's width and the number of its sites: a picture."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adagp.program.figures.style import COLOURS, save, style, subplots
from adagp.schedules import Ladder, Rung, WarmUp
from benchmarks.engine import WARMUP
from benchmarks.measure import Clock
from benchmarks.memory import bp_bytes, gp_bytes
from benchmarks.subjects import Subject, after

LINES = ("plain bp", "bp with predictor", "forward and step", "gp")
ROUNDS = 7
"""Default number of timed rounds."""
MEMORY_PROCESSES = 2
"""Processes that measure memory at a time: most of their time is the import of torch, and nothing is timed meanwhile."""
AXES: dict[str, tuple[Sequence[float], Callable[[float], Subject]]] = {
    "samples in a batch (eight-conv VGG)": ((8, 16, 32, 64, 128), lambda size: Subject("eight_conv_vgg", int(size))),
    "width (eight-conv VGG, 32 samples)": ((0.25, 0.5, 1, 2), lambda width: Subject("eight_conv_vgg", 32, width)),
    "sites (VGGs at width 0.25, 32 samples)": (
        (9, 11, 14, 17),
        lambda sites: Subject({9: "vgg11_bn", 11: "vgg13_bn", 14: "vgg16_bn", 17: "vgg19_bn"}[int(sites)], 32, 0.25),
    ),
}


def draw(path: Path, clock: Clock) -> None:
    """Measure and save the picture: milliseconds above, mebibytes below."""
    subjects = [subject(value) for values, subject in AXES.values() for value in values]
    times_of = {subject: _times(subject, clock) for subject in dict.fromkeys(subjects)}
    memory_of = _memory(list(times_of))
    with style():
        figure, axes = subplots(2, len(AXES), (13.0, 6.5))
        for column, (label, (values, subject)) in enumerate(AXES.items()):
            times = [times_of[subject(value)] for value in values]
            memory = [memory_of[subject(value)] for value in values]
            top, bottom = axes[0][column], axes[1][column]
            for line, colour in zip(LINES, COLOURS, strict=False):
                top.plot(values, [1000 * seconds[line] for seconds in times], "o-", color=colour, label=line)
            bottom.plot(values, [plain for plain, _ in memory], "o-", color=COLOURS[0], label="plain bp")
            bottom.plot(values, [predicted for _, predicted in memory], "o-", color=COLOURS[3], label="gp")
            top.set_ylabel("milliseconds per batch")
            bottom.set_ylabel("peak memory, MiB")
            bottom.set_xlabel(label)
            for axis in (top, bottom):
                axis.set_ylim(bottom=0)
        lines, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside upper center", ncols=len(LINES))
        save(figure, path)


def _memory(subjects: Sequence[Subject]) -> dict[Subject, tuple[float, float]]:
    """Return the peaks of plain BP and of GP batches in mebibytes, each measured in a process of its own."""
    with ThreadPoolExecutor(MEMORY_PROCESSES) as pool:
        bp, gp = pool.map(bp_bytes, subjects), pool.map(gp_bytes, subjects)
        return {subject: (one / 2**20, other / 2**20) for subject, one, other in zip(subjects, bp, gp, strict=True)}


def _times(subject: Subject, clock: Clock) -> dict[str, float]:
    race = clock.race(
        {
            "plain bp": [subject.plain(backward=True)],
            "bp with predictor": [subject.under(WarmUp(Ladder(), epochs=10**9))],
            "forward and step": [subject.plain(backward=False)],
            "gp": [after(subject.under(WarmUp(Ladder((Rung(1, 0),)), epochs=1)), WARMUP)],
        }
    )
    return {line: race.seconds(line) for line in LINES}
