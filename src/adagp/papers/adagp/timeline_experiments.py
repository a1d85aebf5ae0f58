"""ADA-GP's Figures 7 to 9 and its count of synchronisations: arithmetic of the phases, by the designs of the accelerator model.

The figures have four layers, a backward pass of twice the forward pass, and a predictor of latency alpha (2 alpha to train it).
"""

from typing import TYPE_CHECKING, Any

from adagp.core.plan import Phase
from adagp.hw import Accelerator
from adagp.hw.product import NOTHING, Cost
from adagp.hw.simulate import DESIGNS
from adagp.hw.stages import Duty, Predictions, Stage
from adagp.hw.workload import Linear
from adagp.papers.adagp.accelerator_experiments import BATCH, paper_run
from adagp.program.figures.style import grouped_bars, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import compare, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "adagp-figures7to9"
LAYERS, STEP, ALPHA = 4, 1000, 0.25
"""Layers; cycles of a step, which is the forward pass of a layer; the predictor's latency in steps."""
SHOWN = ("baseline", "efficient", "max")


def steps(design: str, phase: Phase, layers: int = LAYERS, alpha: float = ALPHA) -> float:
    """Return the steps of a batch of equal layers on a design."""
    predicted = phase is Phase.GP
    stage = Stage(Linear("", 1, 1, 1), NOTHING, NOTHING, NOTHING)
    forward, backward = Cost(STEP), NOTHING if predicted else Cost(2 * STEP)
    latency = round(alpha * STEP)
    costs = Cost(latency), Cost(2 * latency)
    predictions = Predictions(*costs, *costs)
    uses = design != "baseline"
    duty = Duty(stage, forward, backward, uses, uses and not predicted, predictions if uses else None)
    return sum(cost.cycles for cost in DESIGNS[design].step([duty] * layers, Accelerator())) / STEP


def overlapped_steps(phase: Phase, layers: int = LAYERS, alpha: float = ALPHA) -> float:
    """Return the steps of ADA-GP-MAX as the paper has it: the larger of both latencies in every step."""
    backward = 0.0 if phase is Phase.GP else max(2.0, 2 * alpha)
    return layers * (max(1.0, alpha) + backward)


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the steps of the figures with those of our designs, and count synchronisations."""
    section = published(NAME)
    rows: list[dict[str, Any]] = [
        {"design": design, "bp_steps": steps(design, Phase.BP), "gp_steps": steps(design, Phase.GP)}
        for design in SHOWN[1:]
    ]
    baseline = steps("baseline", Phase.BP)
    rows.insert(0, {"design": "baseline", "bp_steps": baseline, "gp_steps": baseline})
    overlapped = {f"{phase}_steps": overlapped_steps(phase) for phase in (Phase.BP, Phase.GP)}
    rows.append({"design": "max, the larger of both (paper)", **overlapped})
    bp, gp = (steps("efficient", phase) for phase in (Phase.BP, Phase.GP))
    run = paper_run(BATCH * 100)
    share = 1 - sum(count for plan, count in run.counts if plan.phase is Phase.GP) / run.batches
    verdicts = [
        compare("steps of a batch, baseline (Fig. 7)", section.number("steps", "baseline"), baseline, "computed"),
        compare("steps in Phase BP, alpha = 1/4 (Fig. 8)", section.number("steps", "bp"), bp, "computed"),
        compare("steps in Phase GP, alpha = 1/4 (Fig. 9)", section.number("steps", "gp"), gp, "computed"),
        compare("steps of two batches, baseline", section.number("steps", "two_baseline"), 2 * baseline, "computed"),
        compare("steps of a GP and a BP batch", section.number("steps", "two"), bp + gp, "computed"),
        judge(
            "synchronisations of the weights",
            section.claim("synchronisations"),
            share <= 1 / 2,
            f"only batches with true gradients exchange them: half at 1:1, {share:.0%} in a run of 90 epochs with "
            "warm-up and ladder",
            "computed",
        ),
    ]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (8, 4))
        series = {phase: [row[f"{phase}_steps"] for row in rows] for phase in ("bp", "gp")}
        grouped_bars(axes[0][0], [row["design"] for row in rows], series)
        axes[0][0].set(ylabel="steps of a batch")
        return figure

    return Conclusion(rows, verdicts, draw)


add_experiment(
    Experiment(
        NAME,
        "steps of the phases for a network of four layers, and synchronisations",
        {"quick": 0.1, "standard": 0.1, "full": 0.1},
        lambda budget: (),
        conclude,
    )
)
