"""FAST (HPCA 2022): training in block floating point of fixed, scheduled and adaptive precision, with controls; what widths are
worth on its array, and the modelled time to an accuracy of the trained runs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.core.plan import BACKPROP_ALL
from adagp.hw import Accelerator, Workload, simulate
from adagp.hw.runs import Run, replayed_run
from adagp.papers.fast.hardware import BlockWidths, WidthShares, recorded_widths
from adagp.program.figures.style import COLOURS, grouped_bars, legend_beside, subplots, whole_numbers
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, group, mean_and_range, read_epochs
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge
from adagp.program.run.documents import ABSENT, POSITIVE, record_of
from adagp.program.workloads import model_workload, run_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TRAINING, COMBINED = "fast-training", "fast-combined"
PRECISIONS = {
    "fp32": "fp32",
    "bfp4": "bfp4",
    "bfp2": "bfp2",
    "adaptive": "fast",
    "low first": "temporal:2-4@0.5",
    "high first": "temporal:4-2@0.5",
    "fp32 first": "temporal:fp32-2@0.5",
    "fp32 last": "temporal:2-fp32@0.5",
    "fp32 first layers": "layers:fp32-2@3",
    "fp32 last layers": "layers:2-fp32@3",
    "random": "random:2-4@0.66",
}
"""The random choice has the mean width of an adaptive run on CIFAR-10: does it matter which tensors have more bits?"""
OPTIONS: Mapping[str, dict[str, Any]] = {
    "quick": {"dataset": "digits", "model": "digits_cnn", "epochs": 8, "batch_size": 64, "lr": 0.04},
    "standard": {
        "dataset": "cifar10",
        "model": "six_conv_vgg",
        "width": 0.5,
        "batches": 300,
        "batch_size": 64,
        "lr": 0.02,
    },
    "full": {"dataset": "cifar10", "model": "resnet20", "epochs": 90, "batch_size": 128, "lr": 0.1},
}
SEEDS = 3
TENSORS = ("weights", "activations", "gradients")


def _runs(budget: str, precision: str, method: str = "bp") -> RunGroup:
    """Return the runs of one arithmetic; with a method that predicts, every second batch after a tenth has no backward pass."""
    options: dict[str, Any] = {**OPTIONS[budget], "lr_scheduler": "cosine", "method": method, "precision": precision}
    if method != "bp":
        options |= {"ratio": "1:1", "warmup_batches": 30}
    return group(SEEDS, **options)


@cache
def arithmetics(budget: str) -> dict[str, RunGroup]:
    """Return the runs of each arithmetic."""
    return {name: _runs(budget, precision) for name, precision in PRECISIONS.items()}


@cache
def _combinations(budget: str) -> dict[str, RunGroup]:
    names = ("fp32", "bfp4", "adaptive")
    return {
        f"{method}, {name}": _runs(budget, PRECISIONS[name], method)
        for method in ("feedback", "adagp", "skip")
        for name in names
    }


def by_seed(groups: Mapping[str, RunGroup]) -> list[Part]:
    """Return the runs of several groups, all of the first seed before those of the second: a study that is stopped is even."""
    return [run_group.parts[seed] for seed in range(SEEDS) for run_group in groups.values()]


def mean_widths(run_group: RunGroup, workspace: Workspace) -> dict[str, list[float]]:
    """Return the mean mantissa bits over tensors and seeds, by site and by epoch; nothing for single precision."""
    sites: dict[str, list[float]] = defaultdict(list)
    epochs: dict[int, list[float]] = defaultdict(list)
    for part in run_group.parts:
        for number, epoch in enumerate(read_epochs(part, workspace)["by_epoch"]):
            for site, figures in epoch["sites"].items():
                bits = [value for name in TENSORS if (value := figures.get(f"mantissa_{name}")) is not None]
                sites[site] += bits
                epochs[number] += bits
    return {
        "sites": [mean(bits) for bits in sites.values() if bits],
        "epochs": [mean(bits) for bits in epochs.values() if bits],
    }


def conclude_training(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the arithmetics' accuracy, and check whether the adaptive width rises."""
    section, runs = published(TRAINING), arithmetics(budget)
    widths = {name: mean_widths(run_group, workspace) for name, run_group in runs.items()}
    rows = [
        {
            "arithmetic": name,
            "precision": PRECISIONS[name],
            **run_group.row(workspace),
            "mean_mantissa_bits": mean(widths[name]["epochs"]) if widths[name]["epochs"] else 32.0,
            "float_accuracy_percent": run_group.mean(workspace, "float_test_accuracy")
            if name != "fp32"
            else run_group.mean(workspace),
        }
        for name, run_group in runs.items()
    ]
    means = {name: run_group.mean(workspace) for name, run_group in runs.items()}

    def text(*names: str) -> str:
        return (
            f"{', '.join(f'{name} {mean_and_range(runs[name].values(workspace))}' for name in names)} %; {SEEDS} seeds"
        )

    verdicts = [
        judge(
            "adaptive against single precision",
            section.claim("accuracy"),
            means["adaptive"] >= means["fp32"] - section.slack,
            text("fp32", "adaptive", "bfp4", "bfp2"),
        ),
        judge(
            "low first or high first",
            section.claim("temporal"),
            means["low first"] > means["high first"],
            text("low first", "high first"),
        ),
        *(
            judge(name, section.claim(claim), means[better] > means[worse], text(better, worse))
            for name, claim, better, worse in (
                ("single precision first or last", "fp32_temporal", "fp32 last", "fp32 first"),
                ("single precision in first or last layers", "fp32_layers", "fp32 last layers", "fp32 first layers"),
            )
        ),
        *_judge_widths(widths["adaptive"]),
        judge(
            "adaptive or random widths of the same mean",
            section.claim("choice"),
            means["adaptive"] > means["random"],
            text("adaptive", "random"),
        ),
    ]
    return Conclusion(rows, verdicts, lambda: _draw(workspace, runs, widths))


def _judge_widths(widths: Mapping[str, Sequence[float]]) -> list[Verdict]:
    section, sites, epochs = published(TRAINING), widths["sites"], widths["epochs"]
    first, second = mean(sites[: len(sites) // 2]), mean(sites[len(sites) // 2 :])
    rises = None if len(epochs) < 2 else epochs[-1] > epochs[0]
    by_epoch = ", ".join(f"{bits:.2f}" for bits in epochs)
    return [
        judge(
            "mean mantissa bits in the first and second half of the layers",
            section.claim("depth"),
            second > first,
            f"{first:.2f} and {second:.2f}; {SEEDS} seeds",
        ),
        judge(
            "mean mantissa bits by epoch",
            section.claim("time"),
            rises,
            "the runs have one epoch" if rises is None else f"{by_epoch}; {SEEDS} seeds",
        ),
    ]


def _draw(workspace: Workspace, runs: Mapping[str, RunGroup], widths: Mapping[str, dict[str, list[float]]]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (12, 4.5))
    accuracy_bars(axes[0], workspace, runs)
    for number, name in enumerate(("adaptive", "random")):
        sites = widths[name]["sites"]
        axes[1].plot(range(1, len(sites) + 1), sites, "o-", label=name, color=COLOURS[number])
    axes[1].set(xlabel="layer", ylabel="mean mantissa bits", ylim=(1.9, 4.1))
    whole_numbers(axes[1].xaxis)
    legend_beside(axes[1])
    return figure


def conclude_combined(budget: str, workspace: Workspace) -> Conclusion:
    """Judge whether predicting gradients still helps in four bits: the gain over leaving batches out, in each arithmetic."""
    section, runs = published(COMBINED), _combinations(budget)
    rows = [
        {"combination": name, "precision": run_group.options["precision"], **run_group.row(workspace)}
        for name, run_group in runs.items()
    ]
    values = {name: run_group.values(workspace) for name, run_group in runs.items()}
    verdicts = []
    for method in ("feedback", "adagp"):
        for arithmetic in ("bfp4", "adaptive"):
            gain, usual = (
                mean(values[f"{method}, {name}"]) - mean(values[f"skip, {name}"]) for name in (arithmetic, "fp32")
            )
            names = (f"{method}, {arithmetic}", f"skip, {arithmetic}", f"{method}, fp32", "skip, fp32")
            figures = ", ".join(f"{name} {mean_and_range(values[name])}" for name in names)
            verdicts.append(
                judge(
                    f"{method} over skip in {arithmetic}",
                    section.claim("survives"),
                    gain > 0,
                    f"gain {gain:+.2f} points, in fp32 {usual:+.2f}: {figures} %; {SEEDS} seeds",
                )
            )

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 1, (9, 4.5))
        accuracy_bars(axes[0], workspace, runs)
        return figure

    return Conclusion(rows, verdicts, draw)


add_experiment(
    Experiment(
        TRAINING,
        "accuracy in fixed, scheduled, adaptive and random precision",
        {"quick": 1.5, "standard": 14.0, "full": None},
        lambda budget: by_seed(arithmetics(budget)),
        conclude_training,
    )
)
add_experiment(
    Experiment(
        COMBINED,
        "predicted gradients in block floating point",
        {"quick": 1.5, "standard": 14.0, "full": None},
        lambda budget: by_seed(_combinations(budget)),
        conclude_combined,
    ),
    needs=("feedback", "adagp"),
)


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
