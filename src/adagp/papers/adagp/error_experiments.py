"""ADA-GP's Figure 15: the predictor's error by layer and epoch, in several definitions of MAPE, since the paper has none.

VGG13 is trained by backprop, as in the paper's warm-up, while the predictor learns: all epochs have true gradients to compare
with. Next to each error is that of predicting zero.

The paper reports a mean absolute percentage error of 0.16% or less and does not define it. Here |t| is a true, |p| a predicted
value of a weight's gradient; means are over the entries of a weight.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.papers.adagp.accuracy_experiments import STANDARD
from adagp.papers.adagp.source import PredictedSource
from adagp.program.figures.style import legend_beside, series_colour, some_of, subplots, whole_numbers
from adagp.program.reproduce.experiment import READS_DATA, Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge
from adagp.program.run.documents import AMOUNT, Both, Fields, ListOf, Plain, TableOf, record_of
from adagp.sources.learned import LearningOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TORCHMETRICS_EPSILON = 1.17e-6
"""The smallest denominator of torchmetrics' MeanAbsolutePercentageError."""


def _by_entry(truth: Tensor, prediction: Tensor) -> Tensor:
    known = truth != 0
    return ((truth - prediction).abs()[known] / truth.abs()[known]).mean()


def _clamped(truth: Tensor, prediction: Tensor) -> Tensor:
    return ((truth - prediction).abs() / truth.abs().clamp(min=TORCHMETRICS_EPSILON)).mean()


def _by_mean(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).abs().mean() / truth.abs().mean()


def _of_means(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth.abs().mean() - prediction.abs().mean()).abs() / truth.abs().mean()


def _by_largest(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).abs().mean() / truth.abs().max()


def _symmetric(truth: Tensor, prediction: Tensor) -> Tensor:
    total = truth.abs() + prediction.abs()
    known = total != 0
    return (2 * (truth - prediction).abs()[known] / total[known]).mean()


def _plus_one(truth: Tensor, prediction: Tensor) -> Tensor:
    return ((truth - prediction).abs() / (1 + truth.abs())).mean()


def _absolute(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).abs().mean()


def _squared(truth: Tensor, prediction: Tensor) -> Tensor:
    return (truth - prediction).square().mean()


DEFINITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean of |t-p|/|t|": _by_entry,
    "mean of |t-p|/max(|t|, 1.17e-6)": _clamped,
    "mean |t-p| / mean |t|": _by_mean,
    "difference of mean |t| and mean |p| / mean |t|": _of_means,
    "mean |t-p| / max |t|": _by_largest,
    "mean of 2|t-p|/(|t|+|p|)": _symmetric,
    "mean of |t-p|/(1+|t|)": _plus_one,
    "mean |t-p|, no denominator": _absolute,
    "mean (t-p)^2, no denominator": _squared,
}


class MeasuredSource(PredictedSource):
    """ADA-GP's source, which compares each prediction with the true gradient by every definition before it learns."""

    def __init__(self, options: LearningOptions | None = None, every: int = 1) -> None:
        super().__init__(options)
        self.every = every
        self.errors: dict[str, list[Tensor]] = {}
        self.zeros: dict[str, list[Tensor]] = {}
        self._batches = 0

    def prepare_learning(self, sites: Sequence[Site], truths: Sequence[Tensor]) -> Callable[[], None]:
        """Measure the errors of every `every`-th batch, then learn."""
        if self._batches % self.every == 0:
            for site, truth, prediction in zip(sites, truths, self.produce(sites), strict=True):
                if prediction is not None:
                    self.errors.setdefault(site.name, []).append(figures(truth, prediction))
                    self.zeros.setdefault(site.name, []).append(figures(truth, torch.zeros_like(truth)))
        self._batches += 1
        return super().prepare_learning(sites, truths)


@torch.no_grad()
def figures(truth: Tensor, prediction: Tensor) -> Tensor:
    """Return the error by each definition, in percent."""
    return torch.stack([100 * definition(truth, prediction) for definition in DEFINITIONS.values()])


FIGURE_15 = "adagp-figure15"
PRINTED, SQUARED = "mean of |t-p|/|t|", "mean (t-p)^2, no denominator"
"""The usual definition of MAPE, and the mean squared error (here in percent, too)."""
MOST_NAMED = 14
"""Sites that have a name in a legend; of more, some evenly apart."""
VGG13, VGG13_WIDTH = STANDARD["vgg13"]
RUNS: dict[str, dict[str, Any]] = {
    "quick": {"dataset": "digits", "model": "digits_cnn", "width": 1.0, "batch_size": 32, "epochs": 6, "every": 4},
    "standard": {
        "dataset": "cifar10",
        "model": VGG13,
        "width": VGG13_WIDTH,
        "batch_size": 128,
        "epochs": 10,
        "every": 20,
        READS_DATA: True,
    },
    "full": {
        "dataset": "cifar10",
        "model": "vgg13",
        "width": 1.0,
        "batch_size": 128,
        "epochs": 90,
        "every": 20,
        READS_DATA: True,
    },
}
TERMS = {
    "quick": Terms(unlike="digits instead of CIFAR-10"),
    "standard": Terms(reduced="10 epochs instead of 90, an eighth of the width"),
    "full": Terms(reduced="the paper does not define its MAPE"),
}


def measure_errors(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Train by backprop with the published rates while the predictor learns; return its errors by epoch and layer."""
    import torch
    from torch.nn.functional import cross_entropy

    from adagp.data.loaders import image_loaders
    from adagp.data.registry import DEFAULT_DATA_DIR
    from adagp.engine.attach import attach
    from adagp.models.build import build_model

    options = part.options
    torch.manual_seed(0)
    data = image_loaders(options["dataset"], options["batch_size"], data_dir=workspace.data_dir or DEFAULT_DATA_DIR)
    model = build_model(options["model"], classes=data.classes, image=data.shape, width=options["width"])
    model = model.to(workspace.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    source = MeasuredSource(every=options["every"])
    epochs, batches = options["epochs"], len(data.train)
    # A warm-up of all but the last batch: only batches with true gradients are trained and measured.
    trainer = attach(
        model,
        optimizer,
        steps=epochs * batches + 1,
        schedule="1:1",
        warmup=epochs * batches,
        sources={"predicted": source},
    )
    curves: dict[str, list[torch.Tensor]] = {}
    zeros: dict[str, list[torch.Tensor]] = {}
    for epoch in range(epochs):
        model.train()
        for inputs, targets in data.train.epoch(epoch):
            if workspace.stop():
                return None
            with trainer.batch() as batch:
                batch.backward(cross_entropy(model(inputs.to(workspace.device)), targets.to(workspace.device)))
                batch.step()
        for site in source.errors:
            curves.setdefault(site, []).append(torch.stack(source.errors[site]).mean(0))
            zeros.setdefault(site, []).append(torch.stack(source.zeros[site]).mean(0))
        source.errors.clear()
        source.zeros.clear()
    return _by_definition(curves, zeros)


def _by_definition(
    curves: Mapping[str, Sequence[Tensor]], zeros: Mapping[str, Sequence[Tensor]]
) -> dict[str, dict[str, Any]]:
    """Return the errors by definition, given those of each site by epoch: of the predictor, and of predicting zero."""
    return {
        name: {
            "sites": {site: [float(epoch[index]) for epoch in errors] for site, errors in curves.items()},
            "zero": max(float(epoch[index]) for errors in list(zeros.values())[1:] for epoch in errors),
        }
        for index, name in enumerate(DEFINITIONS)
    }


_CURVE = Both(ListOf(AMOUNT), Plain("a list that is not empty", bool))
_CURVES = Both(TableOf(_CURVE), Plain("a table of two sites or more", lambda table: len(table) > 1))
_ERROR = record_of({"sites": _CURVES, "zero": AMOUNT})
ERRORS = Fields({PRINTED: _ERROR, SQUARED: _ERROR}, others=_ERROR, required=(PRINTED, SQUARED))
"""By definition: the error in percent of each site by epoch, and the largest one of predicting zero, the first site aside."""


def _part(budget: str) -> Part:
    return Part(measure_errors, RUNS[budget]["model"], RUNS[budget], 5.0, ERRORS, rank=1)


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the error with the published one, and look for a definition that would give it."""
    errors = workspace.result(_part(budget))
    section = published(FIGURE_15)
    verdicts = [*_sizes(section, errors, TERMS[budget]), _size(section, errors), _trend(section, errors)]
    rows = [
        {"definition": name, "site": site, "epoch": epoch, "measured_percent": value}
        for name, error in errors.items()
        for site, curve in error["sites"].items()
        for epoch, value in enumerate(curve)
    ]
    return Conclusion(rows, verdicts, lambda: _draw(errors))


def _other_layers(error: Mapping[str, Any]) -> list[float]:
    """Return the errors of all sites but the first, in all epochs."""
    return [value for curve in list(error["sites"].values())[1:] for value in curve]


def _sizes(section: Section, errors: Mapping[str, Any], terms: Terms) -> list[Verdict]:
    first = next(iter(errors[PRINTED]["sites"].values()))
    largest = max(value for curve in errors[SQUARED]["sites"].values() for value in curve) / 100
    begin, end = (section.number("mape", name) for name in ("first_layer_begin", "first_layer_end"))
    bound, others = section.number("mape", "other_layers_at_most"), max(_other_layers(errors[PRINTED]))
    return [
        compare("MAPE of the first layer, first epoch", begin, first[0], "measured", terms),
        compare("MAPE of the first layer, last epoch", end, first[-1], "measured", terms),
        compare("largest MAPE of the other layers", bound, others, "measured", terms, at_most=True),
        compare("largest MSE", section.number("mse", "largest"), largest, "measured", terms, at_most=True),
    ]


def _size(section: Section, errors: Mapping[str, Any]) -> Verdict:
    bound = section.number("mape", "other_layers_at_most").value
    printed = _other_layers(errors[PRINTED])
    largest = {name: max(_other_layers(error)) for name, error in errors.items()}
    within = [f"{name} ({value:.2g} %)" for name, value in largest.items() if value <= bound]
    nearest = min(largest, key=lambda name: abs(log(max(largest[name], 1e-30) / bound)))
    first = next(iter(errors[nearest]["sites"].values()))
    text = (
        f"{PRINTED}: {min(printed):.4g} to {max(printed):.4g} %; "
        f"definitions that stay below {bound:g} %: {'; '.join(within) or 'none of those tried'}; nearest: {nearest}, "
        f"at most {largest[nearest]:.2g} % (first layer {first[0]:.2g} to {first[-1]:.2g} %), "
        f"where predicting zero has at most {errors[nearest]['zero']:.2g} %; one seed"
    )
    return judge("size of the error", section.claim("small"), max(printed) < bound, text)


def _trend(section: Section, errors: Mapping[str, Any]) -> Verdict:
    ends = {
        name: [mean(curve[epoch] for curve in errors[name]["sites"].values()) for epoch in (0, -1)]
        for name in (PRINTED, SQUARED)
    }
    falls = all(end < begin for begin, end in ends.values())
    (mape_begin, mape_end), (mse_begin, mse_end) = ends.values()
    text = (
        f"mean MAPE {mape_begin:.4g} to {mape_end:.4g} %, mean MSE {mse_begin / 100:.3g} to {mse_end / 100:.3g}, "
        "first to last epoch; one seed"
    )
    return judge("trend of the error", section.claim("falls"), falls, text)


def _draw(errors: Mapping[str, Any]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (12, 4))
    sites = list(errors[PRINTED]["sites"])
    named = some_of(len(sites), MOST_NAMED)
    for axis, name, title in zip(axes, (PRINTED, SQUARED), ("MAPE, %", "MSE, times 100"), strict=True):
        for number, (site, curve) in enumerate(errors[name]["sites"].items()):
            label = site if number in named else None
            axis.plot(range(len(curve)), curve, label=label, linewidth=1.5, marker=".", color=series_colour(number))
        whole_numbers(axis.xaxis)
        axis.set(xlabel="epoch", title=title, yscale="log")
    legend_beside(axes[1], title="site" if len(named) == len(sites) else f"some of {len(sites)} sites")
    return figure


add_experiment(
    Experiment(
        FIGURE_15,
        "the predictor's error by layer and epoch in several definitions of MAPE, VGG13",
        {"quick": 0.1, "standard": 6.0, "full": None},
        lambda budget: [_part(budget)],
        conclude,
    )
)
