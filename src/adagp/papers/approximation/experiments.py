"""Gradient approximation (Wang, Nelaturu): Tables 2 to 5, by training with zero, random and top-1 weight gradients.

The paper trains with Adam and an exponentially decaying learning rate; ours decays as a cosine. It reports the best validation
accuracy of a run, so these experiments do too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Workspace
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("zero", "random", "topk")
SCHEDULES = ("1", "2", "3")
BEST = "best_test_accuracy"
OPTIMIZER = {"optimizer": "adam", "lr": 1e-3, "lr_scheduler": "cosine"}


@dataclass(frozen=True)
class Network:
    """A published network: what is trained for it at each budget, and what that has less of."""

    ratio: str
    runs: Mapping[str, tuple[int, float, Mapping[str, Any]]]
    standard: str
    smaller: Mapping[str, Mapping[str, Any]] | None = None

    def terms(self, budget: str) -> Terms:
        """Return how far accuracies can be compared."""
        if budget == "quick":
            return Terms(unlike="digits instead of CIFAR-10")
        return Terms(reduced=self.standard if budget == "standard" else "cosine instead of exponential decay")

    def run(self, budget: str, method: str, ratio: str | None = None) -> RunGroup:
        """Return the runs of a method; `smaller` is the smaller network by backprop, `bp` the full gradient."""
        seeds, weight, options = self.runs[budget]
        common: dict[str, Any] = {"dataset": "digits" if budget == "quick" else "cifar10", **OPTIMIZER}
        if budget != "quick":
            common["batch_size"] = 128
        chosen = {**options, **((self.smaller or {})[budget] if method == "smaller" else {})}
        if method in ("bp", "smaller"):
            return group(seeds, weight, **common, **chosen, method="bp")
        return group(seeds, weight, **common, **chosen, method=method, ratio=ratio or self.ratio)


TWO_LAYERS = Network(
    "approx:2-layer",
    {
        "quick": (3, 4.0, {"model": "two_layer_cnn", "width": 0.5, "epochs": 10}),
        "standard": (1, 1.0, {"model": "two_layer_cnn", "width": 0.5, "epochs": 4}),
        "full": (1, 1.0, {"model": "two_layer_cnn", "epochs": 500}),
    },
    "4 epochs instead of about 500, half of the width",
)
RESNET_20 = Network(
    "approx:1",
    {
        "quick": (2, 7.0, {"model": "resnet20", "width": 0.5, "epochs": 6}),
        "standard": (1, 1.0, {"model": "resnet20", "width": 0.5, "epochs": 3}),
        "full": (1, 1.0, {"model": "resnet20", "epochs": 250}),
    },
    "3 epochs instead of about 250, half of the width",
    smaller={name: {"model": "resnet14"} for name in ("quick", "standard", "full")},
)
VGG_19 = Network(
    "approx:1",
    {
        "quick": (3, 3.0, {"model": "digits_cnn", "epochs": 10}),
        "standard": (1, 1.0, {"model": "vgg19_bn", "width": 0.125, "epochs": 4}),
        "full": (1, 1.0, {"model": "vgg19_bn", "epochs": 200}),
    },
    "4 epochs instead of about 200, an eighth of the width",
)


@cache
def _contenders(name: str, budget: str) -> dict[str, RunGroup]:
    network = NETWORKS[name]
    methods = ("bp", *METHODS, *(("smaller",) if network.smaller else ()))
    return {method: network.run(budget, method) for method in methods}


NETWORKS = {"approximation-table2": TWO_LAYERS, "approximation-table3": RESNET_20, "approximation-table4": VGG_19}


def conclude_tradeoff(name: str, budget: str, workspace: Workspace) -> Conclusion:
    """Compare speed-ups and losses of accuracy with those of one of Tables 2 to 4."""
    section, runs = published(name), _contenders(name, budget)
    full = runs["bp"]
    losses = {
        method: full.mean(workspace, BEST) - run_group.mean(workspace, BEST) for method, run_group in runs.items()
    }
    gains = {
        method: 100 * (full.seconds(workspace) / run_group.seconds(workspace) - 1) for method, run_group in runs.items()
    }
    verdicts = _compare_figures(section, gains, losses, NETWORKS[name].terms(budget))
    text = ", ".join(f"{method} {losses[method]:+.2f}" for method in runs if method != "bp")
    text += f" points lost; bp {mean_and_range(full.values(workspace, BEST))} %; {full.extent}"
    for claim, holds in _claims(name, losses).items():
        verdicts.append(judge(f"claim: {claim}", section.claim(claim), holds, text))
    rows = [
        {
            "gradient": method,
            **run_group.row(workspace, BEST),
            "accuracy_lost_points": losses[method],
            "percent_faster": gains[method],
        }
        for method, run_group in runs.items()
    ]
    return Conclusion(rows, verdicts, lambda: _draw_tradeoff(runs, workspace, gains))


def _compare_figures(
    section: Section, gains: Mapping[str, float], losses: Mapping[str, float], terms: Terms
) -> list[Verdict]:
    machine = Terms(unlike=f"{terms.unlike or terms.reduced}; a CPU that other runs share, not a Titan Xp")
    return [
        compare(f"{quantity}, {method}", section.number(figure, method), measured[method], "measured", fair)
        for method in gains
        for quantity, figure, measured, fair in (
            ("measured speed-up", "speedup", gains, machine),
            ("loss of accuracy", "loss", losses, terms),
        )
        if method in section.content[figure]
    ]


def _claims(name: str, losses: Mapping[str, float]) -> dict[str, bool]:
    # Rounded, so that a tie is a tie: means of equal accuracies may differ in their last bit.
    zero, random, topk = (round(losses[method], 6) for method in METHODS)
    if name == "approximation-table2":
        return {"similar": max(zero, random, topk) <= published(name).slack}
    if name == "approximation-table4":
        return {"order": random < topk < zero}
    smaller = round(losses["smaller"], 6)
    return {"order": topk < zero < random, "best": topk < smaller <= min(zero, random)}


def _draw_tradeoff(runs: Mapping[str, RunGroup], workspace: Workspace, gains: Mapping[str, float]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (11, 4.5))
    accuracy_bars(axes[0], workspace, runs, BEST)
    axes[1].bar(list(gains), list(gains.values()))
    axes[1].set(ylabel="measured, % faster than the full gradient")
    return figure


@cache
def _scheduled(budget: str) -> dict[tuple[str, str], RunGroup]:
    return {
        (method, schedule): RESNET_20.run(budget, method, f"approx:{schedule}")
        for method in METHODS
        for schedule in SCHEDULES
    }


@cache
def _references(budget: str) -> dict[str, RunGroup]:
    return {"full": RESNET_20.run(budget, "bp"), "smaller": RESNET_20.run(budget, "smaller")}


def conclude_schedules(budget: str, workspace: Workspace) -> Conclusion:
    """Compare Table 5: three methods under three schedules."""
    section, terms = published("approximation-table5"), RESNET_20.terms(budget)
    runs, references = _scheduled(budget), _references(budget)
    means = {key: round(run_group.mean(workspace, BEST), 6) for key, run_group in runs.items()}
    reference_means = {name: round(run_group.mean(workspace, BEST), 6) for name, run_group in references.items()}
    verdicts = [
        compare(f"accuracy, {name}", section.number(name), accuracy, "measured", terms)
        for name, accuracy in reference_means.items()
    ]
    verdicts += [
        compare(f"accuracy, {method}, schedule {schedule}", section.number(method, schedule), mean, "measured", terms)
        for (method, schedule), mean in means.items()
    ]
    verdicts += _judge_schedules(means, reference_means, references["full"].extent)
    named = {**references, **{f"{method} {schedule}": run_group for (method, schedule), run_group in runs.items()}}
    rows = [{"gradient": name, **run_group.row(workspace, BEST)} for name, run_group in named.items()]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (11, 4.5))
        accuracy_bars(axes[0][0], workspace, named, BEST)
        axes[0][0].set_title(f"Schedules of approximation, ResNet-20 ({budget})")
        return figure

    return Conclusion(rows, verdicts, draw)


def _judge_schedules(
    means: Mapping[tuple[str, str], float], references: Mapping[str, float], extent: str
) -> list[Verdict]:
    section = published("approximation-table5")
    ordered = [s for s in SCHEDULES if means["topk", s] >= means["zero", s] > means["random", s]]
    ahead = [s for s in SCHEDULES if means["topk", s] > references["smaller"]]
    table = "; ".join(f"{method} " + " ".join(f"{means[method, s]:.2f}" for s in SCHEDULES) for method in METHODS)
    text = (
        f"{table} (schedules 1 2 3); full {references['full']:.2f}, ResNet-14 {references['smaller']:.2f} %; {extent}"
    )
    return [
        judge(
            f"claim: {claim}",
            section.claim(claim),
            len(schedules) == len(SCHEDULES),
            f"holds with schedule {', '.join(schedules) or 'none'}; {text}",
        )
        for claim, schedules in (("order", ordered), ("smaller", ahead))
    ]


def _tradeoff(name: str, shows: str, quick: float, standard: float) -> Experiment:
    return Experiment(
        name,
        shows,
        {"quick": quick, "standard": standard, "full": None},
        lambda budget: all_parts(_contenders(name, budget)),
        lambda budget, workspace: conclude_tradeoff(name, budget, workspace),
    )


for _experiment in (
    _tradeoff("approximation-table2", "2-layer CNN: seconds and accuracy lost", 0.6, 18.0),
    _tradeoff("approximation-table3", "ResNet-20: seconds and accuracy lost", 1.1, 27.0),
    _tradeoff("approximation-table4", "VGG-19: seconds and accuracy lost", 0.6, 15.0),
    Experiment(
        "approximation-table5",
        "ResNet-20 under three approximation schedules, and ResNet-14",
        {"quick": 2.4, "standard": 60.0, "full": None},
        lambda budget: [*all_parts(_scheduled(budget)), *all_parts(_references(budget))],
        conclude_schedules,
    ),
):
    add_experiment(_experiment)
