"""ADA-GP's Table 1: is training with predicted gradients as accurate as backprop, and more accurate than skipping the batches?

Our models are narrower and our runs shorter than the paper's, so accuracies themselves cannot agree. What the table states is
compared instead: by how many points ADA-GP's accuracy differs from backprop's.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.core.intervals import interval
from adagp.core.methods import METHODS
from adagp.papers.adagp import PAPER_MODELS
from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.training import LAST, RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import FAIR, Terms, Verdict, compare, compare_difference, judge
from adagp.program.workloads import dataset_info

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_1, SEEDS = "adagp-table1", "adagp-seeds"
SETS = ("cifar10", "cifar100", "imagenet")
PUBLISHED_METHODS = ("bp", "adagp")
DIGITS: dict[str, Any] = {"dataset": "digits", "metrics_every": 2}
QUICK: dict[str, tuple[int, float, dict[str, Any]]] = {
    "vgg13": (3, 8.0, {"model": "digits_cnn", "epochs": 20}),
    "resnet50": (1, 15.0, {"model": "resnet50", "width": 0.125, "epochs": 4}),
    "mobilenet_v2": (1, 20.0, {"model": "mobilenet_v2", "width": 0.25, "epochs": 4}),
}
"""What stands for a model on the digits: seeds, rough seconds, options."""
CIFAR: dict[str, Any] = {"dataset": "cifar10", "batch_size": 128, "epochs": 20, "metrics_every": 20}
"""The published recipe in 20 epochs: SGD at 1e-3 with momentum, ReduceLROnPlateau, predictor by Adam at 1e-4, the ladder."""
SHORT: dict[str, Any] = {
    "dataset": "cifar10",
    "validation": 0.98,
    "test_samples": 500,
    "batch_size": 16,
    "epochs": 5,
    "metrics_every": 10,
    "lr": 0.02,
}
"""1,000 training images. At the published rate of 0.001 so few batches would learn next to nothing."""
SHORT_SETS: dict[str, dict[str, Any]] = {"imagenet": {"dataset": "imagenette", "validation": 0.9}}
"""Further sets of that budget, with one model of each family: 947 training images of Imagenette, of 64x64 pixels."""
SHORT_RANK = 7
"""After all other runs of that budget: thirteen models take longest."""
SMALL_SETS = {"cifar100": "tinyimagenet100", "imagenet": "imagenette"}
"""The small sets of photographs that are trained on in the place of large ones: 10,000 and 9,469 images of 64x64 pixels."""
SMALL_BATCH = 32
"""Their batch size: 20 epochs of a fifth of CIFAR-10's images would be too few updates in batches of 128."""
FIFTH: dict[str, Any] = {**CIFAR, "validation": 0.8, "test_samples": 4000, "batch_size": SMALL_BATCH}
"""The same recipe on a fifth of CIFAR-10's images, tested on others: nearly as many updates in about a quarter of the time."""
CONTROL = "skip"
STANDARD_METHODS = ("bp", "adagp", CONTROL, "feedback")
"""As far as they are installed; skip leaves out the batches that the others predict."""
SHORT_METHODS = ("bp", "adagp", CONTROL)
STANDARD: dict[str, tuple[str, float]] = {
    "vgg13": ("vgg13_bn", 0.125),
    "vgg16": ("vgg16_bn", 0.125),
    "vgg19": ("vgg19_bn", 0.125),
    "resnet50": ("resnet50", 0.0625),
    "mobilenet_v2": ("mobilenet_v2", 0.25),
    "densenet121": ("densenet121", 0.125),
    "inception_v3": ("inception_v3", 0.0625),
    "resnet101": ("resnet101", 0.0625),
    "resnet152": ("resnet152", 0.0625),
    "densenet169": ("densenet169", 0.125),
    "densenet201": ("densenet201", 0.125),
    "inception_v4": ("inception_v4", 0.0625),
    "densenet161": ("densenet161", 0.125),
}
"""Model and width on CIFAR-10 by the published name, in the order in which they are trained: one of each family first."""
WHOLE_SET = ("vgg13", "vgg16", "vgg19")
"""Models that are trained on all images of CIFAR-10; the deeper ones on a fifth."""
FAMILIES = ("vgg13", "mobilenet_v2", "resnet50", "densenet121", "inception_v3")
"""One model of each family, which is trained on the small sets, too."""
SEEDED = {"vgg13": ("vgg13_bn", 0.125), "resnet20": ("resnet20", 0.5), "mobilenet_v2": ("mobilenet_v2", 0.25)}
"""Models that are trained longer and with several seeds."""
SEEDED_EPOCHS = {"quick": 20, "standard": 60, "full": 90}
PUBLISHED: dict[str, Any] = {"batch_size": 128, "epochs": 90}
Key = tuple[str, str, str]
"""Data set, published name of the model, method."""
QUESTIONS = (
    ("adagp", "bp", "similar", "ADA-GP as accurate as backprop"),
    ("adagp", "skip", "adagp_skip", "ADA-GP more accurate than leaving the same batches out"),
    ("feedback", "bp", "feedback", "feedback as accurate as backprop"),
    ("feedback", "skip", "feedback_skip", "feedback more accurate than leaving the same batches out"),
)
"""Method, what it is compared with, the claim, and the name of the verdict."""
UNLEARNT = "backprop is hardly more accurate than guessing at this size, so differences say nothing"
LEARNT = 1.5
"""Backprop has learnt something if it is so many times as accurate as guessing: nearly four standard errors of 500 images."""
SMALLEST_GAIN = 0.005
"""Points by which a method must exceed another to be more accurate: half of an image of CIFAR-10's 10,000."""
TERMS = {
    "quick": Terms(unlike="digits instead of CIFAR-10"),
    "short": Terms(
        reduced="one seed, 1,000 training and 500 other images, 5 epochs instead of 90, a quarter to a sixteenth of the width, "
        "a rate of 0.02"
    ),
    "standard": Terms(reduced="20 epochs instead of 90, and a quarter to a sixteenth of the width"),
    "full": Terms(reduced="batch size, augmentation and initial weights are not stated in the paper"),
}
UNTRAINED = {
    "quick": Terms(reduced="the quick budget trains one model of three families, on the digits"),
    "short": Terms(reduced="the short budget trains on CIFAR-10, and one model of each family on Imagenette"),
    "standard": Terms(reduced="the standard budget trains one model of each family on small sets in this one's place"),
    "full": FAIR,
}


@cache
def groups(budget: str) -> dict[Key, RunGroup]:
    """Return the runs by data set, model and method; at `quick`, digits take the place of CIFAR-10."""
    return {
        "quick": _digits_runs,
        "short": _short_runs,
        "standard": _standard_runs,
        "full": _published_runs,
    }[budget]()


def _digits_runs() -> dict[Key, RunGroup]:
    return {
        ("cifar10", model, method): group(seeds, weight, **DIGITS, **options, method=method)
        for model, (seeds, weight, options) in QUICK.items()
        for method in PUBLISHED_METHODS
    }


def _short_runs() -> dict[Key, RunGroup]:
    planned = [("cifar10", model, SHORT) for model in STANDARD]
    planned += [(name, model, {**SHORT, **changed}) for name, changed in SHORT_SETS.items() for model in FAMILIES]
    return {
        (dataset, model, method): _ladder_runs(
            options, STANDARD[model], method, weight=len(planned) - index, rank=SHORT_RANK
        )
        for index, (dataset, model, options) in enumerate(planned)
        for method in SHORT_METHODS
    }


def _standard_runs() -> dict[Key, RunGroup]:
    methods = [method for method in STANDARD_METHODS if method in METHODS]
    order = {model: len(STANDARD) - index for index, model in enumerate(STANDARD)}
    runs = {
        ("cifar10", model, method): _ladder_runs(
            CIFAR if model in WHOLE_SET else FIFTH, STANDARD[model], method, weight=order[model], rank=1
        )
        for model in STANDARD
        for method in methods
    }
    for name, stand_in in SMALL_SETS.items():
        options = {**CIFAR, "dataset": stand_in, "batch_size": SMALL_BATCH}
        for model in FAMILIES:
            for method in methods:
                runs[name, model, method] = _ladder_runs(options, STANDARD[model], method, weight=order[model], rank=5)
    return runs


def _ladder_runs(
    options: Mapping[str, Any],
    model: tuple[str, float],
    method: str,
    *,
    seeds: int = 1,
    weight: float = 1.0,
    rank: int = LAST,
) -> RunGroup:
    name, width = model
    ratio = None if method == "bp" else "ladder"
    return group(seeds, weight, rank, **options, model=name, width=width, method=method, ratio=ratio)


def _published_runs() -> dict[Key, RunGroup]:
    return {
        (dataset, model, method): group(
            1, **PUBLISHED, dataset=dataset, model=model, method=method, ratio="paper" if method == "adagp" else None
        )
        for dataset in SETS
        for model in PAPER_MODELS
        for method in PUBLISHED_METHODS
    }


def finished(runs: Mapping[Key, RunGroup], workspace: Workspace) -> dict[Key, RunGroup]:
    """Return the runs of the models (by data set) whose runs of all methods are finished."""
    unfinished = {key[:2] for key, members in runs.items() if not all(map(workspace.finished, members.parts))}
    return {key: members for key, members in runs.items() if key[:2] not in unfinished}


def conclude_table_1(budget: str, workspace: Workspace) -> Conclusion:
    """Compare accuracies, as far as models are finished; and the paper's text with its own table."""
    runs = finished(groups(budget), workspace)
    pairs = [(dataset, model) for dataset in SETS for model in PAPER_MODELS]
    verdicts = [_published_gain(budget, workspace, runs, *pair) for pair in pairs]
    if budget == "full":
        verdicts += [_published_accuracy(workspace, key, runs[key]) for key in runs]
    verdicts += _all_answers(published(TABLE_1), workspace, runs)
    verdicts += [*_all_gain(budget, workspace, runs), *_own_arithmetic()]
    return _conclusion(budget, workspace, groups(budget), runs, verdicts)


def _conclusion(
    budget: str,
    workspace: Workspace,
    wanted: Mapping[Key, RunGroup],
    runs: Mapping[Key, RunGroup],
    verdicts: list[Verdict],
) -> Conclusion:
    def draw() -> "Figure":
        names = {f"{members.options['model']} {key[2]}": members for key, members in runs.items()}
        figure, axes = subplots(1, 1, (max(7, 0.8 * len(names)), 4.5))
        accuracy_bars(axes[0][0], workspace, names)
        axes[0][0].set_title(f"Accuracy of backprop and ADA-GP ({budget})")
        return figure

    return Conclusion([members.row(workspace) for members in runs.values()], verdicts, draw, _missing(wanted, runs))


def _missing(needed: Mapping[Key, RunGroup], runs: Mapping[Key, RunGroup]) -> str:
    total = len({key[:2] for key in needed})
    missing = {f"{key[1]} on {needed[key].options['dataset']}" for key in needed.keys() - runs.keys()}
    if not missing:
        return ""
    return f"{total - len(missing)} of {total} models are finished; not yet: {', '.join(sorted(missing))}"


def _published_gain(
    budget: str, workspace: Workspace, runs: Mapping[Key, RunGroup], dataset: str, model: str
) -> Verdict:
    """Compare by how many points ADA-GP differs from backprop: what the two numbers of a table's cell state."""
    section = published(TABLE_1)
    numbers = [section.number(dataset, model, method) for method in PUBLISHED_METHODS]
    tolerance = section.set_up("difference_tolerance")
    quantity = f"{model}, {dataset}: ADA-GP less backprop"
    members = [runs.get((dataset, model, method)) for method in PUBLISHED_METHODS]
    if members[0] is None or members[1] is None:
        planned = (dataset, model, "bp") in groups(budget)
        terms = Terms(reduced="not finished yet") if planned else UNTRAINED[budget]
        return compare_difference(quantity, numbers, (), terms, tolerance=tolerance)
    ours = [runs_of_method.mean(workspace) for runs_of_method in members if runs_of_method is not None]
    options = members[0].options
    terms = TERMS[budget] if _has_learnt(members[0], workspace) else Terms(unlike=UNLEARNT)
    control = runs.get((dataset, model, CONTROL))
    extent = "; ".join(filter(None, (_control_figures(control, workspace), members[0].extent)))
    if budget != "full":
        quantity += f" (ours: {options['model']}, {options['dataset']})"
    return compare_difference(quantity, numbers, ours, terms, tolerance=tolerance, extent=extent)


def _control_figures(control: RunGroup | None, workspace: Workspace) -> str:
    """Return the accuracy of the runs with the same batches left out, in words; empty where none were trained."""
    return "" if control is None else f"the same batches left out: {mean_and_range(control.values(workspace))} %"


def _has_learnt(backprop: RunGroup, workspace: Workspace) -> bool:
    """Return whether backprop itself is well above guessing: below that, no method can be seen to be worse."""
    return backprop.mean(workspace) >= LEARNT * 100 / dataset_info(backprop.options["dataset"]).classes


def _published_accuracy(workspace: Workspace, key: Key, runs: RunGroup) -> Verdict:
    number = published(TABLE_1).number(*key)
    return compare(f"{key[1]}, {key[0]}, {key[2]}", number, runs.mean(workspace), "measured", TERMS["full"])


def _all_answers(section: Section, workspace: Workspace, runs: Mapping[Key, RunGroup]) -> list[Verdict]:
    return [verdict for question in QUESTIONS for verdict in _answers(section, workspace, runs, *question)]


def _answers(
    section: Section,
    workspace: Workspace,
    runs: Mapping[Key, RunGroup],
    method: str,
    other: str,
    claim: str,
    quantity: str,
) -> list[Verdict]:
    """Compare two methods model by model; where a control was trained, over all models, too."""
    least = -section.slack if other == "bp" else SMALLEST_GAIN
    gains, verdicts = [], []
    for key, run, reference in _pairs_that_learnt(workspace, runs, method, other):
        control = runs.get((*key, CONTROL))
        gains.append(run.mean(workspace) - reference.mean(workspace))
        run_range, reference_range = mean_and_range(run.values(workspace)), mean_and_range(reference.values(workspace))
        text = f"{method} {run_range}, {other} {reference_range} %; "
        if other == "bp" and control is not None:
            text += f"{_control_figures(control, workspace)}; "
        text += run.extent
        name = f"{quantity}: {run.options['model']}, {run.options['dataset']}"
        verdicts.append(judge(name, section.claim(claim), gains[-1] >= least, text))
    average = interval(gains)
    if average is None or average.low is None or CONTROL not in {key[2] for key in runs}:
        return verdicts
    seeds = len(next(iter(runs.values())).parts)
    text = (
        f"{method} less {other}: {average.mean:+.2f} points on average over {average.count} models, "
        f"95% interval {average.low:+.2f} to {average.high:+.2f}; {'one seed' if seeds == 1 else f'{seeds} seeds'} each"
    )
    if other == "bp":
        lost = [
            control.mean(workspace) - reference.mean(workspace)
            for _, control, reference in _pairs_that_learnt(workspace, runs, CONTROL, other)
        ]
        text += f"; the same batches left out: {mean(lost):+.2f}"
    return [judge(f"{quantity}: over all models", section.claim(claim), average.low >= least, text), *verdicts]


def _pairs_that_learnt(
    workspace: Workspace, runs: Mapping[Key, RunGroup], method: str, other: str
) -> Iterator[tuple[tuple[str, str], RunGroup, RunGroup]]:
    """Yield data set and model, and the runs of two methods, where both were trained and backprop has learnt something."""
    for dataset, model in dict.fromkeys(key[:2] for key in runs):
        run, reference = runs.get((dataset, model, method)), runs.get((dataset, model, other))
        if run is not None and reference is not None and _has_learnt(runs[dataset, model, "bp"], workspace):
            yield (dataset, model), run, reference


def _all_gain(budget: str, workspace: Workspace, runs: Mapping[Key, RunGroup]) -> Iterator[Verdict]:
    """Judge whether ADA-GP is more accurate than backprop for all models on CIFAR-10: in the printed table, and in our runs."""
    claim, printed = published(TABLE_1).claim("all"), published(TABLE_1).content["cifar10"]
    ahead = sum(row["adagp"] > row["bp"] for row in printed.values())
    text = f"{ahead} of {len(printed)} models in the printed table"
    yield judge("ADA-GP ahead of backprop, printed", claim, ahead == len(printed), text, "computed")
    if budget == "quick":
        return
    trained = {key: value for key, value in runs.items() if key[0] == "cifar10"}
    gains = {
        method: [
            run.mean(workspace) - reference.mean(workspace)
            for _, run, reference in _pairs_that_learnt(workspace, trained, method, "bp")
        ]
        for method in ("adagp", CONTROL)
    }
    counts = {method: f"{sum(gain > 0 for gain in each)} of {len(each)} models" for method, each in gains.items()}
    holds = all(gain > 0 for gain in gains["adagp"]) if gains["adagp"] else None
    text = f"{counts['adagp']}; the same batches left out: {counts[CONTROL]}; "
    text += next(iter(runs.values())).extent if runs else "no model is finished"
    yield judge("ADA-GP ahead of backprop", claim, holds, text)


def _own_arithmetic() -> list[Verdict]:
    """Compare the averages in the paper's text with its own table."""
    section, verdicts = published(TABLE_1), []
    terms = Terms(reduced="the table's own numbers do not give what its text says")
    for dataset in SETS:
        gains = [row["adagp"] - row["bp"] for row in section.content[dataset].values()]
        for name, gain in (("average", mean(gains)), ("largest", max(gains))):
            number = section.number("gain", name, dataset)
            verdicts.append(compare(f"{name} gain over 13 models, {dataset}", number, gain, "computed", terms))
    for model in section.numbers("gain", "on_imagenet"):
        row = section.content["imagenet"][model]
        number = section.number("gain", "on_imagenet", model)
        verdicts.append(compare(f"gain of {model}, imagenet", number, row["adagp"] - row["bp"], "computed", terms))
    return verdicts


@cache
def _seeded(budget: str) -> dict[Key, RunGroup]:
    """Return runs of three seeds; at `quick`, of a small model on the digits."""
    methods = [method for method in STANDARD_METHODS if method in METHODS]
    if budget == "quick":
        _, weight, options = QUICK["vgg13"]
        return {
            ("cifar10", "vgg13", method): group(
                3, weight, **DIGITS, **options, method=method, ratio=None if method in PUBLISHED_METHODS else "ladder"
            )
            for method in methods
        }
    options = {**CIFAR, "epochs": SEEDED_EPOCHS[budget]}
    models = {model: (name, 1.0) for model, (name, _) in SEEDED.items()} if budget == "full" else SEEDED
    return {
        ("cifar10", model, method): _ladder_runs(options, models[model], method, seeds=3)
        for model in models
        for method in methods
    }


def conclude_seeds(budget: str, workspace: Workspace) -> Conclusion:
    """Answer the questions of Table 1 by longer runs with three seeds each."""
    runs = finished(_seeded(budget), workspace)
    verdicts = _all_answers(published(SEEDS), workspace, runs)
    return _conclusion(budget, workspace, _seeded(budget), runs, verdicts)


add_experiment(
    Experiment(
        TABLE_1,
        "top-1 accuracy of 13 CNNs by backprop and ADA-GP",
        {"quick": 1.3, "short": 35.0, "standard": 1300.0, "full": None},
        lambda budget: all_parts(groups(budget)),
        conclude_table_1,
        enough=lambda budget, workspace: bool(finished(groups(budget), workspace)),
    )
)
add_experiment(
    Experiment(
        SEEDS,
        "Table 1's questions by longer runs with three seeds",
        {"quick": 1.5, "standard": 1500.0, "full": None},
        lambda budget: all_parts(_seeded(budget)),
        conclude_seeds,
        enough=lambda budget, workspace: bool(finished(_seeded(budget), workspace)),
    )
)
