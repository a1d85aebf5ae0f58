"""FAST's accelerator: what widths are worth on its array, and the modelled time to an accuracy of the trained runs."""

from collections.abc import Mapping
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.core.plan import BACKPROP_ALL
from adagp.hw import Accelerator, Workload, simulate
from adagp.hw.runs import Run, replayed_run
from adagp.papers.fast.experiments import PRECISIONS, SEEDS, arithmetics, by_seed
from adagp.papers.fast.hardware import BlockWidths, WidthShares, recorded_widths
from adagp.program.figures.style import subplots
from adagp.program.reproduce.bars import grouped_bars
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Part, Workspace
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, read_epochs
from adagp.program.reproduce.verdict import Terms, compare, judge
from adagp.program.run.documents import ABSENT, POSITIVE, record_of
from adagp.program.workloads import model_workload, run_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED, TIME = "fast-speed", "fast-time-to-accuracy"
MODELS = ("resnet50", "vgg16", "mobilenet_v2")
WIDTHS = {"2 bits": (2, 2, 2), "4 bits": (4, 4, 4)}
TARGETS = {"quick": 0.9, "standard": 0.4, "full": 0.9}
"""Test accuracy that counts as reached."""


def simulate_widths(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return cycles and joules of a batch of 128 by backprop on equal arrays, in fixed widths and in whole words."""
    workload = model_workload(part.options["model"], "imagenet")
    costs: dict[str, Any] = {}
    for name, widths in WIDTHS.items():
        shares = WidthShares({"": {BlockWidths(*widths): 1.0}}, {})
        run = Run(128, ((BACKPROP_ALL, 1),), False, recorded=shares)
        outcomes = simulate(workload, Accelerator(), run, ("fast", "dense-16", "dense-32")).outcomes
        costs[name] = {"cycles": outcomes["fast"].cost.cycles, "joules": outcomes["fast"].energy.joules}
    for name in ("dense-16", "dense-32"):
        costs[name] = {"cycles": outcomes[name].cost.cycles, "joules": outcomes[name].energy.joules}
    return costs


_COSTS = record_of(
    dict.fromkeys(
        (*WIDTHS, "dense-16", "dense-32"), record_of({"cycles": POSITIVE, "joules": POSITIVE}, others=ABSENT)
    ),
    others=ABSENT,
)


@cache
def _parts() -> dict[str, Part]:
    return {model: Part(simulate_widths, model, {"model": model}, shape=_COSTS) for model in MODELS}


def conclude_speed(budget: str, workspace: Workspace) -> Conclusion:
    """Compare modelled cycles in 2 and 4 bits with those in words of 16 bits on an array of as many cells."""
    section = published(SPEED)
    results = {model: workspace.result(part) for model, part in _parts().items()}
    passes = {model: costs["4 bits"]["cycles"] / costs["2 bits"]["cycles"] for model, costs in results.items()}
    rows = [
        {
            "model": model,
            "arithmetic": name,
            **figures,
            "speedup_over_dense_16": costs["dense-16"]["cycles"] / figures["cycles"],
        }
        for model, costs in results.items()
        for name, figures in costs.items()
    ]
    speeds = [row["speedup_over_dense_16"] for row in rows if row["arithmetic"] in WIDTHS]
    unlike = Terms(
        "as many cells instead of an equal chip: areas are not in the text at hand; dense words instead of the paper's rivals"
    )
    verdicts = [
        compare("lowest speed-up", section.number("speedup", "lowest"), min(speeds), "modelled", unlike),
        compare("highest speed-up", section.number("speedup", "highest"), max(speeds), "modelled", unlike),
        judge(
            "2 bits against 4 bits on one array",
            section.claim("passes"),
            all(1 <= ratio <= 4 for ratio in passes.values()),
            ", ".join(f"{model} {ratio:.2f} times" for model, ratio in passes.items()),
            "modelled",
        ),
    ]

    return Conclusion(rows, verdicts, lambda: _draw_speed(results))


def _draw_speed(results: Mapping[str, Any]) -> "Figure":
    figure, (axes,) = subplots(1, 1, (8, 4.5))
    names = [*WIDTHS, "dense-16", "dense-32"]
    ratios = {
        model: [costs["dense-16"]["cycles"] / costs[name]["cycles"] for name in names]
        for model, costs in results.items()
    }
    grouped_bars(axes[0], names, ratios, rotated=False)
    axes[0].set(ylabel="modelled speed-up over 16-bit words")
    return figure


def time_to_accuracy(run_group: RunGroup, target: float, workspace: Workspace) -> list[tuple[float, float] | None]:
    """Return the modelled seconds and joules of each run up to the first epoch that reaches `target`; None: not reached.

    Block floating point runs on FAST's array in the run's own widths, single precision on an array for 32-bit words.
    """
    options = run_group.options
    workload = run_workload(options["model"], options["dataset"], None, options.get("width", 1.0))
    return [_until(part, target, workspace, workload) for part in run_group.parts]


def _until(part: Part, target: float, workspace: Workspace, workload: Workload) -> tuple[float, float] | None:
    result = read_epochs(part, workspace)
    accuracies = result["curves"]["accuracy"]
    reached = next((number for number, value in enumerate(accuracies, 1) if (value or 0.0) >= target), None)
    if reached is None:
        return None
    epochs = result["by_epoch"][:reached]
    widths = recorded_widths([(sum(epoch["batches"].values()), epoch["sites"]) for epoch in epochs], 16, 4)
    design = "dense-32" if widths is None else "fast"
    run = replayed_run([epoch["batches"] for epoch in epochs], part.options["batch_size"], "", widths)
    outcome = simulate(workload, Accelerator(), run, (design,)).outcomes[design]
    return outcome.seconds, outcome.energy.joules


def _time_row(name: str, runs: RunGroup, target: float, workspace: Workspace) -> dict[str, Any]:
    reached = [pair for pair in time_to_accuracy(runs, target, workspace) if pair is not None]
    seconds, joules = (mean(values) for values in zip(*reached, strict=True)) if reached else (None, None)
    return {
        "arithmetic": name,
        "precision": PRECISIONS[name],
        "target": target,
        "seeds": SEEDS,
        "reached": len(reached),
        "modelled_seconds": seconds,
        "modelled_joules": joules,
    }


def _time_text(row: dict[str, Any]) -> str:
    seconds = row["modelled_seconds"]
    text = "not reached" if seconds is None else f"{seconds:.3g} s ({row['reached']} of {SEEDS} seeds)"
    return f"{row['arithmetic']} {text}"


def timed_arithmetics(budget: str) -> dict[str, RunGroup]:
    """Return the runs that one array can compute: not those in single precision for some layers or batches only."""
    return {
        name: runs for name, runs in arithmetics(budget).items() if name == "fp32" or "fp32" not in PRECISIONS[name]
    }


def conclude_time(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the modelled time to an accuracy of all arithmetics that one array can compute."""
    section, target = published(TIME), TARGETS[budget]
    rows = [_time_row(name, run_group, target, workspace) for name, run_group in timed_arithmetics(budget).items()]
    reached = {row["arithmetic"]: row["modelled_seconds"] for row in rows if row["reached"] == SEEDS}
    fixed = [reached[name] for name in ("fp32", "bfp4", "bfp2") if name in reached]
    least = reached["adaptive"] < min(fixed) if "adaptive" in reached and fixed else None
    text = ", ".join(map(_time_text, rows))
    verdicts = [judge(f"modelled time to {target:.0%}", section.claim("least"), least, text, "modelled")]

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 1, (8, 4.5))
        axes[0].bar([row["arithmetic"] for row in rows], [row["modelled_seconds"] or 0.0 for row in rows])
        axes[0].set(ylabel=f"modelled seconds to {target:.0%}; none: not reached")
        return figure

    return Conclusion(rows, verdicts, draw)


for _experiment in (
    Experiment(
        SPEED,
        "modelled speed-up of 2 and 4 bits on FAST's array",
        {"quick": 0.15, "standard": 0.15, "full": 0.15},
        lambda budget: list(_parts().values()),
        conclude_speed,
    ),
    Experiment(
        TIME,
        "modelled time and energy to an accuracy in each arithmetic",
        {"quick": 1.6, "standard": 14.0, "full": None},
        lambda budget: by_seed(timed_arithmetics(budget)),
        conclude_time,
    ),
):
    add_experiment(_experiment)
