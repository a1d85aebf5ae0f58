"""The experiment: bits that are kept per weight, as published, and the accuracy against `replay` on the digits."""

from typing import TYPE_CHECKING

from examples.sign_replay.hardware import kept_bits

from adagp.hw import Workload
from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import compare, judge
from adagp.program.workloads import model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sign-replay-bits"
METHODS = ("bp", "replay", "sign_replay")
EPOCHS = {"quick": 4, "standard": 20, "full": 40}


def runs(budget: str) -> dict[str, RunGroup]:
    """Return the runs by method: three seeds each. At every budget they train on the embedded digits."""
    return {
        method: group(3, dataset="digits", model="digits_cnn", method=method, epochs=EPOCHS[budget])
        for method in METHODS
    }


def bits_per_weight(workload: Workload) -> float:
    """Return the bits that are kept per weight of a network."""
    weights = [layer.weights for layer in workload.array_layers]
    return sum(map(kept_bits, weights)) / sum(weights)


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the bits with the published number, and the accuracy with that of replaying whole gradients."""
    section, trained = published(NAME), runs(budget)
    ours = bits_per_weight(model_workload("vgg13", "cifar10"))
    text = ", ".join(f"{method} {mean_and_range(trained[method].values(workspace))}" for method in METHODS)
    holds = trained["sign_replay"].mean(workspace) >= trained["replay"].mean(workspace) - section.slack
    verdicts = [
        compare("kept for VGG13", section.number("bits", "sign"), ours, "computed"),
        judge("signs or whole gradients", section.claim("accurate"), holds, f"{text} %; {trained['bp'].extent}"),
    ]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (6, 4))
        accuracy_bars(axes[0][0], workspace, trained)
        return figure

    return Conclusion([one.row(workspace) for one in trained.values()], verdicts, draw)


add_experiment(
    Experiment(
        NAME,
        "signs of gradients kept instead of gradients",
        {"quick": 0.3, "standard": 1.5, "full": 3.0},
        lambda budget: all_parts(runs(budget)),
        conclude,
    )
)
