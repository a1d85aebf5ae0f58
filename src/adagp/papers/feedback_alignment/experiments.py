"""The rivals of predicted gradients: random feedback and synthetic gradients, in every batch as published and in GP batches."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from adagp.core.methods import METHODS
from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.training import SHORT_CIFAR, RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "feedback-alignment"
LADDER = "ladder"
RIVALS: tuple[tuple[str, str | None], ...] = (
    ("bp", None),
    ("skip", LADDER),
    ("adagp", LADDER),
    ("feedback", LADDER),
    ("dni", LADDER),
    ("fa", LADDER),
    ("dfa", LADDER),
    ("fa", None),
    ("dfa", None),
    ("dni_decoupled", None),
)
"""Method and schedule; without one, the method's own: every batch, as published."""
CIFAR: dict[str, Any] = {"dataset": "cifar10", "batch_size": 128, "epochs": 20, "metrics_every": 20}
RUNS: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "quick": (2, {"digits_cnn": {"dataset": "digits", "model": "digits_cnn", "epochs": 10}}),
    "short": (1, {"vgg13": {**SHORT_CIFAR, "model": "vgg13_bn", "width": 0.125}}),
    "standard": (
        1,
        {
            "vgg13": {**CIFAR, "model": "vgg13_bn", "width": 0.125},
            "resnet20": {**CIFAR, "model": "resnet20", "width": 0.5},
        },
    ),
    "full": (
        3,
        {
            "vgg13": {**CIFAR, "epochs": 90, "model": "vgg13_bn"},
            "resnet20": {**CIFAR, "epochs": 90, "model": "resnet20"},
        },
    ),
}
"""Seeds, and options by model."""
QUESTIONS = (
    ("fa", "fa", "bp", "feedback alignment in every batch"),
    ("dfa", "dfa", "bp", "direct feedback alignment in every batch"),
    ("fa_skip", f"fa {LADDER}", f"skip {LADDER}", "feedback alignment in GP batches"),
    ("dfa_skip", f"dfa {LADDER}", f"skip {LADDER}", "direct feedback alignment in GP batches"),
    ("adagp", f"adagp {LADDER}", f"dfa {LADDER}", "ADA-GP or direct feedback alignment in GP batches"),
)
"""Claim, run, the run that it is compared with, and the name of the verdict."""


@cache
def _runs(budget: str) -> dict[tuple[str, str], RunGroup]:
    """Return the runs by model, and by method with its schedule."""
    seeds, models = RUNS[budget]
    return {
        (model, f"{method} {ratio}" if ratio else method): group(seeds, 4.0, **options, method=method, ratio=ratio)
        for model, options in models.items()
        for method, ratio in RIVALS
        if method in METHODS
    }


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the rivals with backprop and with leaving the batches out, model by model."""
    section, runs = published(NAME), _runs(budget)
    verdicts = [
        verdict
        for model in dict.fromkeys(model for model, _ in runs)
        for verdict in _verdicts(
            section, workspace, model, {name: run for (at, name), run in runs.items() if at == model}
        )
    ]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (max(7, 0.8 * len(runs)), 4.5))
        accuracy_bars(axes[0][0], workspace, {f"{model} {name}": run for (model, name), run in runs.items()})
        return figure

    rows = [{"rival": name, **run.row(workspace)} for (_, name), run in runs.items()]
    return Conclusion(rows, verdicts, draw)


def _verdicts(section: Section, workspace: Workspace, model: str, runs: Mapping[str, RunGroup]) -> list[Verdict]:
    verdicts = []
    for claim, name, other, quantity in QUESTIONS:
        if name not in runs or other not in runs:
            continue
        least = -section.slack if other == "bp" else 0.0
        gain = runs[name].mean(workspace) - runs[other].mean(workspace)
        figures = ", ".join(f"{rival} {mean_and_range(run.values(workspace))}" for rival, run in runs.items())
        text = f"{gain:+.2f} points to {other}; {figures} %; {runs[name].extent}"
        verdicts.append(judge(f"{quantity}: {model}", section.claim(claim), gain > least, text))
    return verdicts + _published_claims(section, workspace, model, runs)


def _published_claims(
    section: Section, workspace: Workspace, model: str, runs: Mapping[str, RunGroup]
) -> list[Verdict]:
    """Judge what ADA-GP's paper says of its rivals in every batch."""
    plain = runs["bp"].mean(workspace)
    every = {name: runs[name].mean(workspace) - plain for name in ("fa", "dfa", "dni_decoupled") if name in runs}
    text = ", ".join(f"{name} {gain:+.2f}" for name, gain in every.items())
    text += f" points to bp ({plain:.2f} %); {runs['bp'].extent}"
    aligned = [gain for name, gain in every.items() if name != "dni_decoupled"]
    verdicts = [
        judge(f"loss of random feedback: {model}", section.claim("lose"), max(aligned) <= -SEVERE, text),
        judge(f"rivals in every batch: {model}", section.claim("no_better"), max(every.values()) <= 0, text),
    ]
    if "dni_decoupled" in runs:
        seconds = {name: runs[name].seconds(workspace) for name in ("bp", "dni_decoupled")}
        slower = seconds["dni_decoupled"] > seconds["bp"]
        text = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
        text += f" measured seconds in batches; {runs['bp'].extent}"
        verdicts.append(judge(f"seconds of synthetic gradients: {model}", section.claim("dni_slower"), slower, text))
    return verdicts


SEVERE = 5.0
"""Points that count as much accuracy lost."""


add_experiment(
    Experiment(
        NAME,
        "feedback alignment and synthetic gradients in every batch and in GP batches",
        {"quick": 1.0, "short": 6.0, "standard": 300.0, "full": None},
        lambda budget: all_parts(_runs(budget)),
        conclude,
    )
)
