"""A picture of the off-chip memory of a training step over time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from adagp.hw.memory import Moment, peak
from adagp.program.figures.style import COLOURS, check_picture_path, legend_beside, save, style, subplots

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
