"""ADA-GP by training: Table 1 (accuracy) and Figure 15 (the predictor's error)."""

from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.program.figures.style import legend_beside, series_colour, some_of, subplots, whole_numbers
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Part, Place
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, spread
from adagp.program.reproduce.verdict import FAIR, Terms, Verdict, compare, judge
from adagp.program.run.record import read_whole_run
from adagp.program.workloads import PAPER_MODELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_1, FIGURE_15 = "adagp-table1", "adagp-figure15"
SETS = ("cifar10", "cifar100", "imagenet")
METHODS = ("bp", "adagp")
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
def groups(budget: str) -> dict[tuple[str, str, str], RunGroup]:
    """Return the runs by data set, model and method; at `quick`, digits take the place of CIFAR-10."""
    if budget == "quick":
        return {
            ("cifar10", model, method): group(seeds, weight, **DIGITS, **options, method=method)
            for model, (seeds, weight, options) in QUICK.items()
            for method in METHODS
        }
    if budget == "standard":
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
        }
    return {
        (dataset, model, method): group(
            1, **PUBLISHED, dataset=dataset, model=model, method=method, ratio="paper" if method == "adagp" else None
        )
        for dataset in SETS
        for model in PAPER_MODELS
        for method in METHODS
    }


def _parts(budget: str) -> Sequence[Part]:
    return all_parts(groups(budget))


def conclude_table_1(budget: str, place: Place) -> Conclusion:
    """Compare accuracies; and the table with what its text says."""
    chosen, section = groups(budget), published(TABLE_1)
    verdicts: list[Verdict] = []
    for dataset in SETS:
        for model in PAPER_MODELS:
            for method in METHODS:
                found = chosen.get((dataset, model, method))
                ours = None if found is None else found.mean(place)
                terms = UNTRAINED[budget] if found is None else TERMS[budget]
                name = f"{model}, {dataset}, {method}"
                if found is not None and budget != "full":
                    name += f" (ours: {found.options['model']}, {found.options['dataset']})"
                verdicts.append(compare(name, section.number(dataset, model, method), ours, "measured", terms))
    verdicts += [_similar(place, key, chosen) for key in chosen if key[2] == "adagp"]
    verdicts += _own_arithmetic()

    def draw() -> "Figure":
        names = {f"{one.options['model']} {method}": one for (_, _, method), one in chosen.items()}
        figure, axes = subplots(1, 1, (max(7, 0.8 * len(names)), 4.5))
        accuracy_bars(axes[0][0], place, names)
        axes[0][0].set_title(f"Accuracy of backprop and ADA-GP ({budget})")
        return figure

    return Conclusion([one.row(place) for one in chosen.values()], verdicts, draw)


def _similar(place: Place, key: tuple[str, str, str], chosen: dict[tuple[str, str, str], RunGroup]) -> Verdict:
    section = published(TABLE_1)
    ours, bp = chosen[key], chosen[(*key[:2], "bp")]
    text = f"adagp {spread(ours.values(place))}, bp {spread(bp.values(place))} %; {ours.extent}"
    return judge(
        f"ADA-GP as accurate as backprop: {ours.options['model']}, {ours.options['dataset']}",
        section.claim("similar"),
        ours.mean(place) >= bp.mean(place) - section.slack,
        text,
    )


def _own_arithmetic() -> list[Verdict]:
    """Compare what the text says of the table with the table."""
    section, verdicts = published(TABLE_1), []
    terms = Terms(reduced="the table's own numbers do not give what its text says")
    for dataset in SETS:
        gains = [row["adagp"] - row["bp"] for row in section.content[dataset].values()]
        for name, ours in (("average", mean(gains)), ("largest", max(gains))):
            number = section.number("gain", name, dataset)
            verdicts.append(compare(f"{name} gain over 13 models, {dataset}", number, ours, "computed", terms))
    return verdicts


def conclude_figure_15(budget: str, place: Place) -> Conclusion:
    """Look at the predictor's error by layer and epoch in the first seed's run."""
    part = groups(budget)["cifar10", "vgg13", "adagp"].parts[0]
    section, terms = published(FIGURE_15), TERMS[budget]
    rows: list[dict[str, Any]] = [
        {
            "epoch": epoch.number,
            "site": site,
            "mape_percent": None if figures["mape"] is None else 100 * figures["mape"],
            **{name: figures[name] for name in ("mse", "cosine", "norm_ratio", "cosine_previous")},
        }
        for epoch in read_whole_run(place.run_folder(part), "look at").epochs
        for site, figures in epoch.sites.items()
    ]
    known = [row for row in rows if row["mape_percent"] is not None]
    sites = list(dict.fromkeys(row["site"] for row in known))
    first = [row["mape_percent"] for row in known if row["site"] == sites[0]]
    others = [row["mape_percent"] for row in known if row["site"] != sites[0]]
    largest = max(row["mse"] for row in known)
    begin, end = (_mean_at(known, epoch) for epoch in (known[0]["epoch"], known[-1]["epoch"]))
    falls = end["mape_percent"] < begin["mape_percent"] and end["mse"] < begin["mse"]
    change = (
        f"mean MAPE {begin['mape_percent']:.4g} to {end['mape_percent']:.4g} %, "
        f"mean MSE {begin['mse']:.3g} to {end['mse']:.3g}, first to last epoch"
    )
    cosines = [row["cosine"] for row in known if row["cosine"] is not None]
    verdicts = [
        *(
            compare(f"MAPE of the first layer, {when} epoch", section.number("mape", name), ours, "measured", terms)
            for when, name, ours in (("first", "first_layer_begin", first[0]), ("last", "first_layer_end", first[-1]))
        ),
        compare(
            "largest MAPE of the other layers",
            section.number("mape", "other_layers_at_most"),
            max(others),
            "measured",
            terms,
            at_most=True,
        ),
        compare("largest MSE", section.number("mse", "largest"), largest, "measured", terms, at_most=True),
        judge("trend of the error", section.claim("falls"), falls, change),
        judge(
            "size of the error",
            section.claim("small"),
            max(others) < section.number("mape", "other_layers_at_most").value,
            f"MAPE between {min(others):.4g} and {max(others):.4g} %; predicting zero has 100 %; "
            f"mean cosine with the true gradient {mean(cosines):.3f}",
        ),
    ]

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 3, (14.5, 4))
        named = some_of(len(sites), MOST_NAMED)
        for axis, name in zip(axes, ("mape_percent", "mse", "cosine"), strict=True):
            for number, site in enumerate(sites):
                points = [(row["epoch"], row[name]) for row in known if row["site"] == site and row[name] is not None]
                label = site if number in named else None
                axis.plot(
                    *zip(*points, strict=True), label=label, linewidth=1.5, marker=".", color=series_colour(number)
                )
            whole_numbers(axis.xaxis)
            axis.set(xlabel="epoch", title={"mape_percent": "MAPE, %", "mse": "MSE", "cosine": "cosine"}[name])
        axes[0].set_yscale("log")
        axes[1].set_yscale("log")
        legend_beside(axes[2], title="site" if len(named) == len(sites) else f"some of {len(sites)} sites")
        return figure

    return Conclusion(rows, verdicts, draw)


def _mean_at(rows: Sequence[dict[str, Any]], epoch: int) -> dict[str, float]:
    return {name: mean(row[name] for row in rows if row["epoch"] == epoch) for name in ("mape_percent", "mse")}


for _experiment in (
    Experiment(
        TABLE_1,
        "top-1 accuracy of 13 CNNs by backprop and ADA-GP",
        {"quick": 1.3, "standard": 100.0, "full": None},
        _parts,
        conclude_table_1,
    ),
    Experiment(
        FIGURE_15,
        "the predictor's MAPE and MSE by layer and epoch, VGG13",
        {"quick": 0.1, "standard": 2.0, "full": None},
        lambda budget: groups(budget)["cifar10", "vgg13", "adagp"].parts[:1],
        conclude_figure_15,
    ),
):
    add_experiment(_experiment)
