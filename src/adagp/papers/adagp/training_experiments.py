"""The open questions of the notes on ADA-GP by training: the sweep of k:m, and ADA-GP against synthetic gradients (DNI)."""

from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.hw import Accelerator, simulate
from adagp.papers.adagp.accelerator_experiments import paper_run
from adagp.papers.adagp.accuracy_experiments import CIFAR, DIGITS, PUBLISHED, QUICK, STANDARD
from adagp.program.figures.style import label_points, series_colour, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import SHORT_CIFAR, RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import judge
from adagp.program.run.documents import POSITIVE, record_of
from adagp.program.workloads import dataset_info, model_workload
from adagp.schedules.ladder import Ladder, scaled_warmup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP, DNI = "ratio-sweep", "dni-comparison"
LADDER, ADAPTIVE, REVERSED = "ladder", "adaptive", "reversed ladder"
LENGTHS = {
    "quick": QUICK["vgg13"][2]["epochs"],
    "short": SHORT_CIFAR["epochs"],
    "standard": CIFAR["epochs"],
    "full": PUBLISHED["epochs"],
}
"""Epochs of the runs by budget."""
SEVERE = 5.0
"""Points that count as a severe loss of accuracy."""
CLOSE = 0.5
"""The cosine from which on a prediction counts as close."""
ACCURACY = ("accuracy_percent", "accuracy_lowest", "accuracy_highest")
MODELLED = "vgg13_modelled_speedup"
FIXED = ("1:4", "1:1", "2:1", "4:1", "8:1")
"""GP to BP batches."""
CONTROL = "skip"
RIVALS = ("adagp", "predicted_labels", "dni", "dni_labels", "replay", CONTROL)


def _train(budget: str, method: str, ratio: str | None = None) -> RunGroup:
    """Return runs of the model that stands for VGG13, with the options of Table 1: what is equal is shared with it."""
    if budget == "quick":
        seeds, weight, options = QUICK["vgg13"]
        return group(seeds, weight, **DIGITS, **options, method=method, ratio=ratio)
    if budget == "short":
        model, width = STANDARD["vgg13"]
        written = ratio or (None if method == "bp" else LADDER)
        return group(1, 12.0, **SHORT_CIFAR, model=model, width=width, method=method, ratio=written)
    if budget == "standard":
        model, width = STANDARD["vgg13"]
        written = ratio or (None if method == "bp" else LADDER)
        return group(1, **CIFAR, model=model, width=width, method=method, ratio=written)
    printed = "paper" if method != "bp" and ratio is None else ratio
    return group(1, **PUBLISHED, dataset="cifar10", model="vgg13", method=method, ratio=printed)


@cache
def _sweep(budget: str) -> dict[str, RunGroup]:
    return {
        "bp": _train(budget, "bp"),
        LADDER: _train(budget, "adagp"),
        **{ratio: _train(budget, "adagp", ratio) for ratio in (*FIXED, ADAPTIVE)},
        REVERSED: _train(budget, "adagp", reversed_ladder(LENGTHS[budget])),
    }


@cache
def _left_out(budget: str) -> dict[str, RunGroup]:
    """Return the controls of the sweep: the GP batches of each schedule left out. Adaptive phases depend on predictions."""
    return {
        LADDER: _train(budget, CONTROL),
        **{ratio: _train(budget, CONTROL, ratio) for ratio in FIXED},
        REVERSED: _train(budget, CONTROL, reversed_ladder(LENGTHS[budget])),
    }


def reversed_ladder(epochs: int) -> str:
    """Return the ladder of a run the other way round: as many epochs on each rung, most true gradients first."""
    rungs = Ladder.scaled(epochs).rungs
    others = [rung.epochs or 0 for rung in rungs[:-1]]
    lengths = [*others, epochs - scaled_warmup(epochs) - sum(others)]
    turned = list(zip(reversed(rungs), reversed(lengths), strict=True))
    last = turned[-1][0]
    return ",".join([f"{rung.ratio}x{length}" for rung, length in turned[:-1]] + [last.ratio])


def simulate_ratio(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return the modelled speed-up of VGG13 on CIFAR-10 under a ratio, 90 epochs of which 10 are warm-up."""
    run = paper_run(dataset_info("cifar10").train, ratio=part.options["ratio"])
    simulation = simulate(model_workload("vgg13", "cifar10"), Accelerator(), run)
    return {"speedup": simulation.speedup("max")}


SPEEDUP = record_of({"speedup": POSITIVE})


@cache
def _modelled() -> dict[str, Part]:
    texts = {LADDER: "paper", **{ratio: ratio for ratio in FIXED}}
    return {name: Part(simulate_ratio, text, {"ratio": text}, shape=SPEEDUP) for name, text in texts.items()}


def conclude_sweep(budget: str, workspace: Workspace) -> Conclusion:
    """Look for a fixed ratio that is as accurate as the ladder and predicts as large a share of the batches."""
    runs = _sweep(budget)
    rows = [_sweep_row(name, run_group, workspace) for name, run_group in runs.items()]
    skipped = [
        {**_sweep_row(name, run_group, workspace), MODELLED: None} for name, run_group in _left_out(budget).items()
    ]
    ladder = next(row for row in rows if row["schedule"] == LADDER)
    better = [row["schedule"] for row in rows if row["schedule"] in FIXED and _is_as_good(row, ladder)]
    figures = ", ".join(f"{row['schedule']} {row['accuracy_percent']:.2f} % ({row['gp_share']:.0%} GP)" for row in rows)
    controls = ", ".join(f"{name} {run_group.mean(workspace):.2f}" for name, run_group in _left_out(budget).items())
    text = f"{figures}; as accurate with as many GP batches: {', '.join(better) or 'none'}"
    text += f"; the same batches left out: {controls} %; {runs[LADDER].extent}"
    section = published(SWEEP)
    accuracy = {str(row["schedule"]): float(row["accuracy_percent"]) for row in rows}
    most = max(FIXED, key=lambda ratio: int(ratio.split(":")[0]))
    verdicts = [
        judge("ladder or fixed k:m", section.claim("adaptive"), not better, text),
        judge("ladder or its reverse", section.claim("late"), accuracy[LADDER] > accuracy[REVERSED], text),
        judge(
            "phases by the quality of predictions", section.claim("steps"), accuracy[ADAPTIVE] >= accuracy[LADDER], text
        ),
        judge(
            f"nearly always predicting ({most})",
            section.claim("always"),
            accuracy["bp"] - accuracy[most] >= SEVERE,
            text,
        ),
    ]
    return Conclusion([*rows, *skipped], verdicts, lambda: _draw_sweep(rows))


def _sweep_row(name: str, runs: RunGroup, workspace: Workspace) -> dict[str, Any]:
    row = runs.row(workspace)
    row["gp_share"] = row["gp_batches"] / (row["gp_batches"] + row["bp_batches"])
    speedup = workspace.result(_modelled()[name])["speedup"] if name in _modelled() else 1.0
    return {"schedule": name, **row, MODELLED: speedup}


def _is_as_good(row: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(row[name] >= other[name] for name in ("accuracy_percent", "gp_share"))


def _draw_sweep(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (12, 4.5), share_y=True)
    labels = {
        "batch_seconds": "measured seconds in batches",
        MODELLED: "modelled speed-up of VGG13 under the same ratio",
    }
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        colours = {row["schedule"]: series_colour(index) for index, row in enumerate(rows)}
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


def conclude_dni(budget: str, workspace: Workspace) -> Conclusion:
    """Compare quality of prediction and accuracy of ADA-GP's predictor with DNI's, and with the controls."""
    section, runs = published(DNI), _rivals(budget)
    cosines = {name: _cosine(run_group, workspace) for name, run_group in runs.items()}
    known = {name: value for name, value in cosines.items() if value is not None}
    closer = known["adagp"] >= known["dni"] if {"adagp", "dni"} <= known.keys() else None
    cosine_text = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    accuracies = {name: run_group.values(workspace) for name, run_group in runs.items()}
    accuracy_text = ", ".join(f"{name} {mean_and_range(values)}" for name, values in accuracies.items())
    accurate = mean(accuracies["adagp"]) >= mean(accuracies["dni"])
    extent = runs["adagp"].extent
    verdicts = [
        judge("mean cosine with the true gradient", section.claim("closer"), closer, f"{cosine_text}; {extent}"),
        judge("accuracy in DNI's place", section.claim("accurate"), accurate, f"{accuracy_text} %; {extent}"),
        *(
            judge(f"cosine of {name}", section.claim(claim), _is_close(known.get(name)), f"{cosine_text}; {extent}")
            for name, claim in (("adagp", "close"), ("dni", "mlp"))
        ),
    ]

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 2, (12, 4.5))
        accuracy_bars(axes[0], workspace, runs)
        axes[1].bar(list(known), list(known.values()))
        axes[1].set(ylabel="mean cosine with the true gradient")
        return figure

    rows = [{"rival": name, **run_group.row(workspace), "cosine": cosines[name]} for name, run_group in runs.items()]
    return Conclusion(rows, verdicts, draw)


def _is_close(cosine: float | None) -> bool | None:
    return None if cosine is None else cosine >= CLOSE


def _cosine(run_group: RunGroup, workspace: Workspace) -> float | None:
    """Return the mean cosine over runs, epochs and sites; None for a method that predicts nothing."""
    results = (workspace.result(part) for part in run_group.parts)
    values = [float(result["cosine"]) for result in results if result.get("cosine") is not None]
    return mean(values) if values else None


add_experiment(
    Experiment(
        SWEEP,
        "accuracy against speed of fixed k:m and of the ladder",
        {"quick": 3.0, "short": 3.0, "standard": 240.0, "full": None},
        lambda budget: [*all_parts(_sweep(budget)), *all_parts(_left_out(budget)), *_modelled().values()],
        conclude_sweep,
    )
)
add_experiment(
    Experiment(
        DNI,
        "ADA-GP's predictor against synthetic gradients and controls",
        {"quick": 2.4, "short": 2.0, "standard": 130.0, "full": None},
        lambda budget: all_parts(_rivals(budget)),
        conclude_dni,
    ),
    needs=("dni", "dni_labels"),
)
