"""The notes on ADA-GP: the sweep of k:m, and ADA-GP against synthetic gradients (DNI)."""

from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.hw import Accelerator, simulate
from adagp.papers.adagp.accelerator_experiments import paper_run
from adagp.papers.adagp.training_experiments import CIFAR, DIGITS, PUBLISHED, QUICK, STANDARD
from adagp.program.figures.labels import label_points
from adagp.program.figures.style import series_colour, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Part, Place
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, spread
from adagp.program.reproduce.verdict import judge
from adagp.program.run.documents import POSITIVE, record_of
from adagp.program.run.record import read_whole_run
from adagp.program.workloads import dataset_info, model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP, DNI = "ratio-sweep", "dni-comparison"
LADDER = "ladder"
ACCURACY = ("accuracy_percent", "accuracy_lowest", "accuracy_highest")
FIXED = ("1:4", "1:1", "2:1", "4:1", "8:1")
"""GP to BP batches."""
RIVALS = ("adagp", "predicted_labels", "dni", "dni_labels", "replay", "skip")


def _train(budget: str, method: str, ratio: str | None = None) -> RunGroup:
    """Return runs of the model that stands for VGG13, with the options of Table 1: what is equal is shared with it."""
    if budget == "quick":
        seeds, weight, options = QUICK["vgg13"]
        return group(seeds, weight, **DIGITS, **options, method=method, ratio=ratio)
    if budget == "standard":
        model, width = STANDARD["vgg13"]
        return group(1, **CIFAR, model=model, width=width, method=method, ratio=ratio)
    printed = "paper" if method != "bp" and ratio is None else ratio
    return group(1, **PUBLISHED, dataset="cifar10", model="vgg13", method=method, ratio=printed)


@cache
def _sweep(budget: str) -> dict[str, RunGroup]:
    return {
        "bp": _train(budget, "bp"),
        LADDER: _train(budget, "adagp"),
        **{ratio: _train(budget, "adagp", ratio) for ratio in FIXED},
    }


def simulate_ratio(part: Part, place: Place) -> dict[str, Any]:
    """Return the modelled speed-up of VGG13 on CIFAR-10 under a ratio, 90 epochs of which 10 are warm-up."""
    run = paper_run(dataset_info("cifar10").train, ratio=part.options["ratio"])
    found = simulate(model_workload("vgg13", "cifar10"), Accelerator(), run)
    return {"speedup": found.speedup("max")}


SPEEDUP = record_of({"speedup": POSITIVE})


@cache
def _modelled() -> dict[str, Part]:
    texts = {LADDER: "paper", **{ratio: ratio for ratio in FIXED}}
    return {name: Part(simulate_ratio, text, {"ratio": text}, shape=SPEEDUP) for name, text in texts.items()}


def conclude_sweep(budget: str, place: Place) -> Conclusion:
    """Ask whether a fixed ratio is at once as accurate as the ladder and predicts as large a share of the batches."""
    section, runs = published(SWEEP), _sweep(budget)
    rows: list[dict[str, Any]] = []
    for name, one in runs.items():
        row = one.row(place)
        row["gp_share"] = row["gp_batches"] / (row["gp_batches"] + row["bp_batches"])
        speedup = place.result(_modelled()[name])["speedup"] if name in _modelled() else 1.0
        rows.append({"schedule": name, **row, "vgg13_modelled_speedup": speedup})
    ladder = next(row for row in rows if row["schedule"] == LADDER)
    better = [
        row["schedule"]
        for row in rows
        if row["schedule"] in FIXED
        and row["accuracy_percent"] >= ladder["accuracy_percent"]
        and row["gp_share"] >= ladder["gp_share"]
    ]
    found = ", ".join(f"{row['schedule']} {row['accuracy_percent']:.2f} % ({row['gp_share']:.0%} GP)" for row in rows)
    text = f"{found}; as accurate with as many GP batches: {', '.join(better) or 'none'}; {runs[LADDER].extent}"
    verdicts = [judge("ladder or fixed k:m", section.claim("adaptive"), not better, text)]
    return Conclusion(rows, verdicts, lambda: _draw_sweep(rows))


def _draw_sweep(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (12, 4.5), share_y=True)
    labels = {
        "batch_seconds": "measured seconds in batches",
        "vgg13_modelled_speedup": "modelled speed-up of VGG13 under the same ratio",
    }
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        colours = {row["schedule"]: series_colour(place) for place, row in enumerate(rows)}
        bars = []
        for row in rows:
            x, middle, lowest, highest = (row[name] for name in (key, *ACCURACY))
            error = [[middle - lowest], [highest - middle]]
            axis.errorbar(x, middle, yerr=error, fmt="o", capsize=3, color=colours[row["schedule"]])
            bars.append(((x, lowest), (x, highest)))
        axis.margins(x=0.12, y=0.1)
        axis.set(xlabel=label)
        label_points(axis, {row["schedule"]: (row[key], row[ACCURACY[0]]) for row in rows}, colours, bars)
    axes[0].set_ylabel("measured accuracy, %")
    return figure


@cache
def _rivals(budget: str) -> dict[str, RunGroup]:
    return {"bp": _train(budget, "bp"), **{method: _train(budget, method) for method in RIVALS}}


def conclude_dni(budget: str, place: Place) -> Conclusion:
    """Compare quality of prediction and accuracy of ADA-GP's predictor with DNI's, and with the controls."""
    section, runs = published(DNI), _rivals(budget)
    cosines = {name: _cosine(one, place) for name, one in runs.items()}
    rows = [{"rival": name, **one.row(place), "cosine": cosines[name]} for name, one in runs.items()]
    text = ", ".join(f"{name} {value:.3f}" for name, value in cosines.items() if value is not None)
    accuracies = {name: one.values(place) for name, one in runs.items()}
    shown = ", ".join(f"{name} {spread(values)}" for name, values in accuracies.items())
    ours, theirs = cosines["adagp"], cosines["dni"]
    closer = None if ours is None or theirs is None else ours >= theirs
    accurate = mean(accuracies["adagp"]) >= mean(accuracies["dni"])
    seeds = runs["adagp"].extent
    verdicts = [
        judge(quantity, section.claim(claim), holds, f"{figures}; {seeds}")
        for quantity, claim, holds, figures in (
            ("mean cosine with the true gradient", "closer", closer, text),
            ("accuracy in DNI's place", "accurate", accurate, f"{shown} %"),
        )
    ]

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 2, (12, 4.5))
        accuracy_bars(axes[0], place, runs)
        known = {name: value for name, value in cosines.items() if value is not None}
        axes[1].bar(list(known), list(known.values()))
        axes[1].set(ylabel="mean cosine with the true gradient")
        return figure

    return Conclusion(rows, verdicts, draw)


def _cosine(one: RunGroup, place: Place) -> float | None:
    """Return the mean cosine over runs, epochs and sites; None for a method that predicts nothing."""
    runs = (read_whole_run(place.run_folder(part), "compare") for part in one.parts)
    values = [value for run in runs for epoch in run.epochs for value in epoch.over_sites("cosine")]
    return mean(values) if values else None


for _experiment in (
    Experiment(
        SWEEP,
        "accuracy against speed of fixed k:m and of the ladder",
        {"quick": 2.0, "standard": 16.0, "full": None},
        lambda budget: [*all_parts(_sweep(budget)), *_modelled().values()],
        conclude_sweep,
    ),
    Experiment(
        DNI,
        "ADA-GP's predictor against synthetic gradients and controls",
        {"quick": 2.4, "standard": 20.0, "full": None},
        lambda budget: all_parts(_rivals(budget)),
        conclude_dni,
    ),
):
    add_experiment(_experiment)
