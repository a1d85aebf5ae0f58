"""ADA-GP by training: Table 1 (accuracy), Figure 15 (the predictor's error), and the open questions of the notes on ADA-GP: the
sweep of k:m, and ADA-GP against synthetic gradients (DNI)."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.core.intervals import interval
from adagp.core.methods import METHODS
from adagp.hw import Accelerator, simulate
from adagp.papers.adagp import PAPER_MODELS
from adagp.papers.adagp.accelerator_experiments import paper_run
from adagp.program.figures.style import label_points, legend_beside, series_colour, some_of, subplots, whole_numbers
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Part, Workspace
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import FAIR, Terms, Verdict, compare, judge
from adagp.program.run.documents import POSITIVE, record_of
from adagp.program.run.record import read_whole_run
from adagp.program.workloads import dataset_info, model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_1, FIGURE_15, SWEEP, DNI = "adagp-table1", "adagp-figure15", "ratio-sweep", "dni-comparison"
SETS = ("cifar10", "cifar100", "imagenet")
PUBLISHED_METHODS = ("bp", "adagp")
MOST_NAMED = 14
"""Sites that have a name in a legend; of more, some evenly apart."""
DIGITS: dict[str, Any] = {"dataset": "digits", "metrics_every": 2}
QUICK: dict[str, tuple[int, float, dict[str, Any]]] = {
    "vgg13": (3, 8.0, {"model": "digits_cnn", "epochs": 20}),
    "resnet50": (1, 15.0, {"model": "resnet50", "width": 0.125, "epochs": 4}),
    "mobilenet_v2": (1, 20.0, {"model": "mobilenet_v2", "width": 0.25, "epochs": 4}),
}
"""What stands for a model on the digits: seeds, rough seconds, options."""
CIFAR: dict[str, Any] = {"dataset": "cifar10", "batch_size": 128, "epochs": 20, "metrics_every": 20}
"""The published recipe in 20 epochs: SGD at 1e-3 with momentum, ReduceLROnPlateau, predictor by Adam at 1e-4, the ladder."""
STANDARD_METHODS = ("bp", "adagp", "skip", "feedback")
"""As far as they are installed; skip leaves out the batches that the others predict."""
STANDARD: dict[str, tuple[str, float]] = {
    "vgg13": ("vgg13_bn", 0.125),
    "vgg16": ("vgg16_bn", 0.125),
    "vgg19": ("vgg19_bn", 0.125),
    "mobilenet_v2": ("mobilenet_v2", 0.25),
    "resnet50": ("resnet50", 0.0625),
    "resnet101": ("resnet101", 0.0625),
    "resnet152": ("resnet152", 0.0625),
    "densenet121": ("densenet121", 0.125),
    "densenet169": ("densenet169", 0.125),
    "densenet201": ("densenet201", 0.125),
    "densenet161": ("densenet161", 0.125),
    "inception_v3": ("inception_v3", 0.0625),
    "inception_v4": ("inception_v4", 0.0625),
}
"""Model and width on CIFAR-10 by the published name, in the order in which they are trained."""
PUBLISHED: dict[str, Any] = {"batch_size": 128, "epochs": 90}
LADDER = "ladder"
ACCURACY = ("accuracy_percent", "accuracy_lowest", "accuracy_highest")
FIXED = ("1:4", "1:1", "2:1", "4:1", "8:1")
"""GP to BP batches."""
RIVALS = ("adagp", "predicted_labels", "dni", "dni_labels", "replay", "skip")
Key = tuple[str, str, str]
"""Data set, published name of the model, method."""
VGG13_RUN: Key = ("cifar10", "vgg13", "adagp")
"""The run that Figure 15 looks into."""
QUESTIONS = (
    ("adagp", "bp", "similar", "ADA-GP as accurate as backprop"),
    ("adagp", "skip", "adagp_skip", "ADA-GP more accurate than leaving the same batches out"),
    ("feedback", "bp", "feedback", "feedback as accurate as backprop"),
    ("feedback", "skip", "feedback_skip", "feedback more accurate than leaving the same batches out"),
)
"""Method, what it is compared with, the claim, and the name of the verdict."""
SMALLEST_GAIN = 0.005
"""Points by which a method must exceed another to be more accurate: half of an image of CIFAR-10's 10,000."""
TERMS = {
    "quick": Terms(unlike="digits instead of CIFAR-10"),
    "standard": Terms(reduced="20 epochs instead of 90, and a quarter to a sixteenth of the width"),
    "full": Terms(reduced="batch size, augmentation and initial weights are not stated in the paper"),
}
UNTRAINED = {
    "quick": Terms(reduced="the quick budget trains one model of three families, on the digits"),
    "standard": Terms(reduced="the standard budget trains on CIFAR-10 only"),
    "full": FAIR,
}


@cache
def groups(budget: str) -> dict[Key, RunGroup]:
    """Return the runs by data set, model and method; at `quick`, digits take the place of CIFAR-10."""
    return {"quick": _digits_runs, "standard": _cifar10_runs, "full": _published_runs}[budget]()


def _digits_runs() -> dict[Key, RunGroup]:
    return {
        ("cifar10", model, method): group(seeds, weight, **DIGITS, **options, method=method)
        for model, (seeds, weight, options) in QUICK.items()
        for method in PUBLISHED_METHODS
    }


def _cifar10_runs() -> dict[Key, RunGroup]:
    return {
        ("cifar10", published_name, method): group(
            1,
            len(STANDARD) - order,  # the cheap models first
            **CIFAR,
            model=model,
            width=width,
            method=method,
            ratio=None if method == "bp" else "ladder",
        )
        for order, (published_name, (model, width)) in enumerate(STANDARD.items())
        for method in STANDARD_METHODS
        if method in METHODS
    }


def _published_runs() -> dict[Key, RunGroup]:
    return {
        (dataset, model, method): group(
            1, **PUBLISHED, dataset=dataset, model=model, method=method, ratio="paper" if method == "adagp" else None
        )
        for dataset in SETS
        for model in PAPER_MODELS
        for method in PUBLISHED_METHODS
    }


def finished_groups(budget: str, workspace: Workspace) -> dict[Key, RunGroup]:
    """Return the runs of the models (by data set) whose runs of all methods are finished."""
    unfinished = {key[:2] for key, runs in groups(budget).items() if not all(map(workspace.finished, runs.parts))}
    return {key: runs for key, runs in groups(budget).items() if key[:2] not in unfinished}


def conclude_table_1(budget: str, workspace: Workspace) -> Conclusion:
    """Compare accuracies, as far as models are finished; and the paper's text with its own table."""
    finished = finished_groups(budget, workspace)
    verdicts = [_published_accuracy(budget, workspace, key) for key in product(SETS, PAPER_MODELS, PUBLISHED_METHODS)]
    for question in QUESTIONS:
        verdicts += _answers(workspace, finished, *question)
    verdicts += _own_arithmetic()

    def draw() -> "Figure":
        names = {f"{runs.options['model']} {method}": runs for (_, _, method), runs in finished.items()}
        figure, axes = subplots(1, 1, (max(7, 0.8 * len(names)), 4.5))
        accuracy_bars(axes[0][0], workspace, names)
        axes[0][0].set_title(f"Accuracy of backprop and ADA-GP ({budget})")
        return figure

    rows = [runs.row(workspace) for runs in finished.values()]
    return Conclusion(rows, verdicts, draw, _missing(groups(budget), finished))


def _missing(needed: Mapping[Key, RunGroup], finished: Mapping[Key, RunGroup]) -> str:
    total = len({key[:2] for key in needed})
    missing = {f"{model} on {dataset}" for dataset, model, _ in needed.keys() - finished.keys()}
    if not missing:
        return ""
    return f"{total - len(missing)} of {total} models are finished; not yet: {', '.join(sorted(missing))}"


def _published_accuracy(budget: str, workspace: Workspace, key: Key) -> Verdict:
    number, quantity = published(TABLE_1).number(*key), ", ".join((key[1], key[0], key[2]))
    runs = finished_groups(budget, workspace).get(key)
    if runs is None:
        terms = Terms(reduced="not finished yet") if key in groups(budget) else UNTRAINED[budget]
        return compare(quantity, number, None, "measured", terms)
    if budget != "full":
        quantity += f" (ours: {runs.options['model']}, {runs.options['dataset']})"
    return compare(quantity, number, runs.mean(workspace), "measured", TERMS[budget])


def _answers(
    workspace: Workspace, runs: Mapping[Key, RunGroup], method: str, other: str, claim: str, quantity: str
) -> list[Verdict]:
    """Compare two methods model by model; where a control was trained, over all models, too."""
    section = published(TABLE_1)
    least = -section.slack if other == "bp" else SMALLEST_GAIN
    gains, verdicts = [], []
    for dataset, model in dict.fromkeys(key[:2] for key in runs):
        run, reference = runs.get((dataset, model, method)), runs.get((dataset, model, other))
        if run is None or reference is None:
            continue
        gains.append(run.mean(workspace) - reference.mean(workspace))
        run_range, reference_range = mean_and_range(run.values(workspace)), mean_and_range(reference.values(workspace))
        text = f"{method} {run_range}, {other} {reference_range} %; {run.extent}"
        name = f"{quantity}: {run.options['model']}, {run.options['dataset']}"
        verdicts.append(judge(name, section.claim(claim), gains[-1] >= least, text))
    average = interval(gains)
    if average is None or average.low is None or "skip" not in {key[2] for key in runs}:
        return verdicts
    text = (
        f"{method} less {other}: {average.mean:+.2f} points on average over {average.count} models, "
        f"95% interval {average.low:+.2f} to {average.high:+.2f}; one seed each"
    )
    return [judge(f"{quantity}: over all models", section.claim(claim), average.low >= least, text), *verdicts]


def _own_arithmetic() -> list[Verdict]:
    """Compare the averages in the paper's text with its own table."""
    section, verdicts = published(TABLE_1), []
    terms = Terms(reduced="the table's own numbers do not give what its text says")
    for dataset in SETS:
        gains = [row["adagp"] - row["bp"] for row in section.content[dataset].values()]
        for name, gain in (("average", mean(gains)), ("largest", max(gains))):
            number = section.number("gain", name, dataset)
            verdicts.append(compare(f"{name} gain over 13 models, {dataset}", number, gain, "computed", terms))
    return verdicts


def conclude_figure_15(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the predictor's error by layer and epoch in the first seed's run."""
    run = read_whole_run(workspace.run_folder(groups(budget)[VGG13_RUN].parts[0]), "look at")
    rows: list[dict[str, Any]] = [
        {
            "epoch": epoch.number,
            "site": site,
            "mape_percent": None if figures["mape"] is None else 100 * figures["mape"],
            **{name: figures[name] for name in ("mse", "cosine", "norm_ratio", "cosine_previous")},
        }
        for epoch in run.epochs
        for site, figures in epoch.sites.items()
    ]
    known = [row for row in rows if row["mape_percent"] is not None]
    verdicts = [*_error_sizes(known, TERMS[budget]), _error_trend(known)]
    return Conclusion(rows, verdicts, lambda: _draw_errors(known))


def _error_sizes(rows: Sequence[dict[str, Any]], terms: Terms) -> list[Verdict]:
    """Compare the sizes of the error with the published ones: of the first layer, and the largest of the others."""
    section, first_site = published(FIGURE_15), rows[0]["site"]
    first = [row["mape_percent"] for row in rows if row["site"] == first_site]
    others = [row["mape_percent"] for row in rows if row["site"] != first_site]
    cosines = [row["cosine"] for row in rows if row["cosine"] is not None]
    bound = section.number("mape", "other_layers_at_most")
    text = (
        f"MAPE between {min(others):.4g} and {max(others):.4g} %; predicting zero has 100 %; "
        f"mean cosine with the true gradient {mean(cosines):.3f}"
    )
    begin, end = (section.number("mape", name) for name in ("first_layer_begin", "first_layer_end"))
    largest = max(row["mse"] for row in rows)
    return [
        compare("MAPE of the first layer, first epoch", begin, first[0], "measured", terms),
        compare("MAPE of the first layer, last epoch", end, first[-1], "measured", terms),
        compare("largest MAPE of the other layers", bound, max(others), "measured", terms, at_most=True),
        compare("largest MSE", section.number("mse", "largest"), largest, "measured", terms, at_most=True),
        judge("size of the error", section.claim("small"), max(others) < bound.value, text),
    ]


def _error_trend(rows: Sequence[dict[str, Any]]) -> Verdict:
    begin, end = (_mean_at(rows, epoch) for epoch in (rows[0]["epoch"], rows[-1]["epoch"]))
    falls = end["mape_percent"] < begin["mape_percent"] and end["mse"] < begin["mse"]
    text = (
        f"mean MAPE {begin['mape_percent']:.4g} to {end['mape_percent']:.4g} %, "
        f"mean MSE {begin['mse']:.3g} to {end['mse']:.3g}, first to last epoch"
    )
    return judge("trend of the error", published(FIGURE_15).claim("falls"), falls, text)


def _mean_at(rows: Sequence[dict[str, Any]], epoch: int) -> dict[str, float]:
    return {name: mean(row[name] for row in rows if row["epoch"] == epoch) for name in ("mape_percent", "mse")}


def _draw_errors(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, (axes,) = subplots(1, 3, (14.5, 4))
    sites = list(dict.fromkeys(row["site"] for row in rows))
    named = some_of(len(sites), MOST_NAMED)
    titles = {"mape_percent": "MAPE, %", "mse": "MSE", "cosine": "cosine"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for number, site in enumerate(sites):
            points = [(row["epoch"], row[name]) for row in rows if row["site"] == site and row[name] is not None]
            label = site if number in named else None
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.5, marker=".", color=series_colour(number))
        whole_numbers(axis.xaxis)
        axis.set(xlabel="epoch", title=title, yscale="linear" if name == "cosine" else "log")
    legend_beside(axes[2], title="site" if len(named) == len(sites) else f"some of {len(sites)} sites")
    return figure


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
    ladder = next(row for row in rows if row["schedule"] == LADDER)
    better = [row["schedule"] for row in rows if row["schedule"] in FIXED and _is_as_good(row, ladder)]
    figures = ", ".join(f"{row['schedule']} {row['accuracy_percent']:.2f} % ({row['gp_share']:.0%} GP)" for row in rows)
    text = f"{figures}; as accurate with as many GP batches: {', '.join(better) or 'none'}; {runs[LADDER].extent}"
    verdict = judge("ladder or fixed k:m", published(SWEEP).claim("adaptive"), not better, text)
    return Conclusion(rows, [verdict], lambda: _draw_sweep(rows))


def _sweep_row(name: str, runs: RunGroup, workspace: Workspace) -> dict[str, Any]:
    row = runs.row(workspace)
    row["gp_share"] = row["gp_batches"] / (row["gp_batches"] + row["bp_batches"])
    speedup = workspace.result(_modelled()[name])["speedup"] if name in _modelled() else 1.0
    return {"schedule": name, **row, "vgg13_modelled_speedup": speedup}


def _is_as_good(row: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(row[name] >= other[name] for name in ("accuracy_percent", "gp_share"))


def _draw_sweep(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (12, 4.5), share_y=True)
    labels = {
        "batch_seconds": "measured seconds in batches",
        "vgg13_modelled_speedup": "modelled speed-up of VGG13 under the same ratio",
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
    ]

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 2, (12, 4.5))
        accuracy_bars(axes[0], workspace, runs)
        axes[1].bar(list(known), list(known.values()))
        axes[1].set(ylabel="mean cosine with the true gradient")
        return figure

    rows = [{"rival": name, **run_group.row(workspace), "cosine": cosines[name]} for name, run_group in runs.items()]
    return Conclusion(rows, verdicts, draw)


def _cosine(run_group: RunGroup, workspace: Workspace) -> float | None:
    """Return the mean cosine over runs, epochs and sites; None for a method that predicts nothing."""
    runs = (read_whole_run(workspace.run_folder(part), "compare") for part in run_group.parts)
    values = [value for run in runs for epoch in run.epochs for value in epoch.over_sites("cosine")]
    return mean(values) if values else None


add_experiment(
    Experiment(
        TABLE_1,
        "top-1 accuracy of 13 CNNs by backprop and ADA-GP",
        {"quick": 1.3, "standard": 100.0, "full": None},
        lambda budget: all_parts(groups(budget)),
        conclude_table_1,
        enough=lambda budget, workspace: bool(finished_groups(budget, workspace)),
    )
)
add_experiment(
    Experiment(
        FIGURE_15,
        "the predictor's MAPE and MSE by layer and epoch, VGG13",
        {"quick": 0.1, "standard": 2.0, "full": None},
        lambda budget: groups(budget)[VGG13_RUN].parts[:1],
        conclude_figure_15,
    )
)
add_experiment(
    Experiment(
        SWEEP,
        "accuracy against speed of fixed k:m and of the ladder",
        {"quick": 2.0, "standard": 16.0, "full": None},
        lambda budget: [*all_parts(_sweep(budget)), *_modelled().values()],
        conclude_sweep,
    )
)
add_experiment(
    Experiment(
        DNI,
        "ADA-GP's predictor against synthetic gradients and controls",
        {"quick": 2.4, "standard": 20.0, "full": None},
        lambda budget: all_parts(_rivals(budget)),
        conclude_dni,
    ),
    needs=("dni", "dni_labels"),
)
