"""Gradient approximation (Wang, Nelaturu): Tables 2 to 5, by training with zero, random and top-1 weight gradients.

As in the paper, Adam's learning rate decays exponentially (by how much is not stated: ours to a hundredth), and the best
accuracy of a run counts. Losses of accuracy are compared, not accuracies: our networks are narrower, our runs shorter. The
zero gradient is the control of the other two: the same weight gradients left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Any

from adagp.hw.workload import Convolution, Workload
from adagp.program.figures.style import grouped_bars, legend_beside, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Number, Section, published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import Terms, Verdict, compare, compare_difference, judge, noted
from adagp.program.workloads import model_workload
from adagp.schedules.pattern import Every

if TYPE_CHECKING:
    from matplotlib.figure import Figure


METHODS = ("zero", "random", "topk")
OVER = -100
"""The speed-up of Table 4 that is printed as "over -100%": a bound."""
SCHEDULES = ("1", "2", "3")
LATER_SCHEDULES = ("2", "3")
"""Those of Figure 8."""
EVERY_LAYER = "sites=every conv; batches=every 4th; first=allowed"
"""Schedule 3 as its text has it, the first convolution included; `approx:3` leaves that out like the other schedules."""
RANK = 3
"""The place of these runs in the queue of a campaign."""
BEST = "best_test_accuracy"
SHORT_DATA: dict[str, Any] = {"validation": 0.975, "test_samples": 1000, "batch_size": 32}
SHORT_WORDS = "1,250 training images, 1,000 others to evaluate on"
"""The data of the short budget: a fortieth of the training images, evaluated on some of the rest."""
OPTIMIZER = {"optimizer": "adam", "lr": 1e-3, "lr_scheduler": "exponential"}


@dataclass(frozen=True)
class Network:
    """A published network: what is trained for it at each budget, and what that has less of."""

    ratio: str
    runs: Mapping[str, tuple[int, float, Mapping[str, Any]]]
    short: str
    standard: str
    smaller: Mapping[str, Mapping[str, Any]] | None = None

    def terms(self, budget: str) -> Terms:
        """Return how far accuracies can be compared."""
        if budget == "quick":
            return Terms(unlike="digits instead of CIFAR-10")
        reduced = {"short": f"{SHORT_WORDS}, {self.short}", "standard": self.standard}
        return Terms(reduced=reduced.get(budget, "the rate of the decay is not stated"))

    def run(self, budget: str, method: str, ratio: str | None = None) -> RunGroup:
        """Return the runs of a method; `smaller` is the smaller network by backprop, `bp` the full gradient.

        `scaled` is the approximated gradient divided by the batch size once more, as it is printed.
        """
        seeds, weight, options = self.runs[budget]
        common: dict[str, Any] = {"dataset": "digits" if budget == "quick" else "cifar10", **OPTIMIZER}
        if budget == "short":
            common |= SHORT_DATA
        elif budget != "quick":
            common["batch_size"] = 128
        chosen = {**options, **((self.smaller or {})[budget] if method == "smaller" else {})}
        if method in ("bp", "smaller"):
            return group(seeds, weight, RANK, **common, **chosen, method="bp")
        if method == "scaled":
            chosen |= {"published_scale": True}
        name = "topk" if method == "scaled" else method
        return group(seeds, weight, RANK, **common, **chosen, method=name, ratio=ratio or self.ratio)


TWO_LAYERS = Network(
    "approx:2-layer",
    {
        "quick": (3, 4.0, {"model": "two_layer_cnn", "width": 0.5, "epochs": 10}),
        "short": (1, 6.0, {"model": "two_layer_cnn", "width": 0.5, "epochs": 5}),
        "standard": (3, 1.0, {"model": "two_layer_cnn", "width": 0.5, "epochs": 10}),
        "full": (1, 1.0, {"model": "two_layer_cnn", "epochs": 500}),
    },
    "5 epochs instead of about 500, half of the width",
    "10 epochs instead of about 500, half of the width",
)
RESNET_20 = Network(
    "approx:1",
    {
        "quick": (2, 7.0, {"model": "resnet20", "width": 0.5, "epochs": 6}),
        "short": (1, 20.0, {"model": "resnet20", "width": 0.5, "epochs": 5}),
        "standard": (3, 1.0, {"model": "resnet20", "width": 0.5, "epochs": 10}),
        "full": (1, 1.0, {"model": "resnet20", "epochs": 250}),
    },
    "5 epochs instead of about 250, half of the width",
    "10 epochs instead of about 250, half of the width",
    smaller={name: {"model": "resnet14"} for name in ("quick", "short", "standard", "full")},
)
VGG_19 = Network(
    "approx:1",
    {
        "quick": (3, 3.0, {"model": "digits_cnn", "epochs": 10}),
        "short": (1, 15.0, {"model": "vgg19_bn", "width": 0.125, "epochs": 5}),
        "standard": (3, 1.0, {"model": "vgg19_bn", "width": 0.125, "epochs": 10}),
        "full": (1, 1.0, {"model": "vgg19_bn", "epochs": 200}),
    },
    "5 epochs instead of about 200, an eighth of the width",
    "10 epochs instead of about 200, an eighth of the width",
)


@cache
def _contenders(name: str, budget: str) -> dict[str, RunGroup]:
    network = NETWORKS[name]
    methods = ("bp", *METHODS, "scaled", *(("smaller",) if network.smaller else ()))
    return {method: network.run(budget, method) for method in methods}


NETWORKS = {"approximation-table2": TWO_LAYERS, "approximation-table3": RESNET_20, "approximation-table4": VGG_19}


def conclude_tradeoff(name: str, budget: str, workspace: Workspace) -> Conclusion:
    """Compare speed-ups and losses of accuracy with those of one of Tables 2 to 4."""
    section, runs = published(name), _contenders(name, budget)
    full = runs["bp"]
    losses = {
        method: full.mean(workspace, BEST) - run_group.mean(workspace, BEST) for method, run_group in runs.items()
    }
    gains = {
        method: 100 * (full.seconds(workspace) / run_group.seconds(workspace) - 1) for method, run_group in runs.items()
    }
    extent = f"zero loses {losses['zero']:+.2f}; {full.extent}"
    verdicts = _compare_figures(section, gains, losses, NETWORKS[name].terms(budget), extent)
    text = ", ".join(f"{method} {losses[method]:+.2f}" for method in runs if method != "bp")
    text += f" points lost; bp {mean_and_range(full.values(workspace, BEST))} %; {full.extent}"
    for claim, holds in _claims(name, losses).items():
        verdicts.append(judge(f"claim: {claim}", section.claim(claim), holds, text))
    rows = [
        {
            "gradient": method,
            **run_group.row(workspace, BEST),
            "accuracy_lost_points": losses[method],
            "percent_faster": gains[method],
        }
        for method, run_group in runs.items()
    ]
    return Conclusion(rows, verdicts, lambda: _draw_tradeoff(runs, workspace, gains))


def _compare_figures(
    section: Section, gains: Mapping[str, float], losses: Mapping[str, float], terms: Terms, extent: str
) -> list[Verdict]:
    text = f"{terms.unlike or terms.reduced}; a CPU that other runs share, not a Titan Xp"
    machine = Terms(unlike=text) if terms.unlike else Terms(reduced=text)
    return [
        noted(
            compare(
                f"{quantity}, {method}",
                section.number(figure, method),
                measured[method],
                "measured",
                fair,
                at_most=section.content[figure][method] == OVER,
            ),
            extent,
        )
        for method in gains
        for quantity, figure, measured, fair in (
            ("measured speed-up", "speedup", gains, machine),
            ("loss of accuracy", "loss", losses, terms),
        )
        if method in section.content[figure]
    ]


def _claims(name: str, losses: Mapping[str, float]) -> dict[str, bool]:
    # Rounded, so that a tie is a tie: means of equal accuracies may differ in their last bit.
    zero, random, topk = (round(losses[method], 6) for method in METHODS)
    if name == "approximation-table2":
        return {"similar": max(zero, random, topk) <= published(name).slack, "random": random < 0}
    if name == "approximation-table4":
        return {"order": random < topk < zero}
    smaller = round(losses["smaller"], 6)
    return {"order": topk < zero < random, "best": topk < smaller <= min(zero, random)}


def _draw_tradeoff(runs: Mapping[str, RunGroup], workspace: Workspace, gains: Mapping[str, float]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (11, 4.5))
    accuracy_bars(axes[0], workspace, runs, BEST)
    axes[1].bar(list(gains), list(gains.values()))
    axes[1].set(ylabel="measured, % faster than the full gradient")
    return figure


@cache
def _scheduled(budget: str) -> dict[tuple[str, str], RunGroup]:
    return {
        (method, schedule): RESNET_20.run(budget, method, f"approx:{schedule}")
        for method in METHODS
        for schedule in SCHEDULES
    }


@cache
def _every_layer(budget: str) -> dict[str, RunGroup]:
    """Return schedule 3 on every layer, the first one included."""
    return {method: RESNET_20.run(budget, method, EVERY_LAYER) for method in METHODS}


@cache
def _references(budget: str) -> dict[str, RunGroup]:
    return {"full": RESNET_20.run(budget, "bp"), "smaller": RESNET_20.run(budget, "smaller")}


def conclude_schedules(budget: str, workspace: Workspace) -> Conclusion:
    """Compare Table 5: three methods under three schedules."""
    section, terms = published("approximation-table5"), RESNET_20.terms(budget)
    runs, references = _scheduled(budget), _references(budget)
    means = {key: round(run_group.mean(workspace, BEST), 6) for key, run_group in runs.items()}
    reference_means = {name: round(run_group.mean(workspace, BEST), 6) for name, run_group in references.items()}
    full = section.number("full")
    cells: list[tuple[tuple[str, ...], RunGroup]] = [(("smaller",), references["smaller"]), *runs.items()]
    verdicts = [
        noted(
            _lost(" ".join(path), full, section.number(*path), references["full"], run_group, workspace, terms),
            f"zero {means['zero', path[-1]]:.2f} %" if path[0] in ("random", "topk") else "",
        )
        for path, run_group in cells
    ]
    first_too = ", ".join(f"{method} {run.mean(workspace, BEST):.2f}" for method, run in _every_layer(budget).items())
    extent = f"schedule 3 with the first layer, too: {first_too} %; {references['full'].extent}"
    verdicts += _judge_schedules(means, reference_means, extent)
    every = {f"{method} 3, every layer": run_group for method, run_group in _every_layer(budget).items()}
    named = {
        **references,
        **every,
        **{f"{method} {schedule}": run_group for (method, schedule), run_group in runs.items()},
    }
    rows = [{"gradient": name, **run_group.row(workspace, BEST)} for name, run_group in named.items()]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (11, 4.5))
        accuracy_bars(axes[0][0], workspace, named, BEST)
        axes[0][0].set_title(f"Schedules of approximation, ResNet-20 ({budget})")
        return figure

    return Conclusion(rows, verdicts, draw)


def _lost(
    name: str, full: Number, number: Number, reference: RunGroup, runs: RunGroup, workspace: Workspace, terms: Terms
) -> Verdict:
    """Compare the points of accuracy that are gained over the full gradient, or lost."""
    accuracies = [run_group.mean(workspace, BEST) for run_group in (reference, runs)]
    return compare_difference(f"{name} less the full gradient", (full, number), accuracies, terms, extent=runs.extent)


def _judge_schedules(
    means: Mapping[tuple[str, str], float], references: Mapping[str, float], extent: str
) -> list[Verdict]:
    section = published("approximation-table5")
    ordered = [s for s in SCHEDULES if means["topk", s] >= means["zero", s] > means["random", s]]
    ahead = [s for s in SCHEDULES if means["topk", s] > references["smaller"]]
    text = (
        f"{_table(means)} (schedules 1 2 3); full {references['full']:.2f}, ResNet-14 {references['smaller']:.2f} %; "
        f"{extent}"
    )
    better = all(means[method, s] > means[method, "1"] for method in ("zero", "topk") for s in ("2", "3"))
    poor = all(references["full"] - means["random", s] > POOR for s in ("2", "3"))
    near = references["full"] - means["topk", "3"] <= NEAR + 1e-9
    return [
        _judge_every_schedule(section, "order", ordered, text),
        _judge_every_schedule(section, "smaller", ahead, text),
        judge("claim: schedules", section.claim("schedules"), better, text),
        judge("claim: nearest", section.claim("nearest"), near, text),
        judge(
            "claim: zero",
            section.claim("zero"),
            sum(means["zero", s] > references["smaller"] for s in SCHEDULES) >= 2,
            text,
        ),
        judge("claim: poor", section.claim("poor"), poor, text),
    ]


def _judge_every_schedule(section: Section, claim: str, holding: Sequence[str], text: str) -> Verdict:
    """Return the verdict on a claim about every schedule, given those with which it holds."""
    holds = len(holding) == len(SCHEDULES)
    words = f"holds with schedule {', '.join(holding) or 'none'}; {text}"
    return judge(f"claim: {claim}", section.claim(claim), holds, words)


def _table(means: Mapping[tuple[str, str], float]) -> str:
    return "; ".join(f"{method} " + " ".join(f"{means[method, s]:.2f}" for s in SCHEDULES) for method in METHODS)


POOR = 2.0
"""Points below the full gradient that count as poor."""
NEAR = 0.1
"""Points by which schedule 3 with the approximated gradient is below the full one, as the paper states."""


def conclude_curves(budget: str, workspace: Workspace) -> Conclusion:
    """Check what the paper says of the curves of Figures 5 to 8, in the first seed's runs."""
    section = published(CURVES)
    curves = {
        name: {method: _curve(run_group, workspace) for method, run_group in _contenders(name, budget).items()}
        for name in NETWORKS
    }
    scheduled = _scheduled_curves(budget, workspace)
    extent = _contenders("approximation-table2", budget)["bp"].first.extent
    rows = [
        {"network": name, "gradient": method, "epoch": epoch, "measured_loss": loss, "measured_accuracy": accuracy}
        for name, methods in (curves | scheduled).items()
        for method, curve in methods.items()
        for epoch, (loss, accuracy) in enumerate(zip(curve["loss"], curve["accuracy"], strict=False))
    ]
    verdicts = [*_judge_curves(section, curves, extent), _judge_scheduled_curves(section, scheduled, extent)]
    return Conclusion(rows, verdicts, lambda: _draw_curves(curves | scheduled))


def _scheduled_curves(budget: str, workspace: Workspace) -> dict[str, dict[str, "Curve"]]:
    """Return the curves of Figure 8: ResNet-20 under schedules 2 and 3, next to the full gradient."""
    full = _curve(_references(budget)["full"], workspace)
    return {
        f"ResNet-20, schedule {schedule}": {
            "bp": full,
            **{method: _curve(_scheduled(budget)[method, schedule], workspace) for method in METHODS},
        }
        for schedule in LATER_SCHEDULES
    }


Curve = Mapping[str, list[float | None]]
"""Loss and accuracy of a run by epoch."""


def _judge_curves(section: Section, curves: Mapping[str, Mapping[str, Curve]], extent: str) -> list[Verdict]:
    two, resnet, vgg = curves.values()
    gaps = [abs(one - full) for method in METHODS for one, full in _pairs(two[method], two["bp"], "accuracy")]
    gap = 100 * max(gaps, default=0.0)
    highest = all(
        loss >= other
        for other_method in ("bp", "zero", "topk")
        for loss, other in _pairs(resnet["random"], resnet[other_method], "loss")
    )
    early = [one > full for method in METHODS for one, full in _pairs(vgg[method], vgg["bp"], "accuracy")[:1]]
    late = [full > one for method in METHODS for one, full in _pairs(vgg[method], vgg["bp"], "accuracy")[-1:]]
    return [
        judge(
            "curves of the 2-layer CNN",
            section.claim("two_layers"),
            gap <= section.slack,
            f"largest gap {gap:.2f} points; accuracy of the last epoch: {_words(_last(two, 'accuracy', 100))} %; {extent}",
        ),
        judge(
            "training loss of ResNet-20",
            section.claim("resnet"),
            highest,
            f"random is {'' if highest else 'not '}highest in every epoch; of the last one: {_words(_last(resnet, 'loss'))}; "
            f"{extent}",
        ),
        judge(
            "curves of VGG-19",
            section.claim("vgg"),
            all(early) and all(late),
            f"full is behind {sum(early)} of {len(early)} at first, ahead of {sum(late)} of {len(late)} at last: "
            f"{_words(_last(vgg, 'accuracy', 100))} %; {extent}",
        ),
    ]


def _judge_scheduled_curves(section: Section, curves: Mapping[str, Mapping[str, Curve]], extent: str) -> Verdict:
    """Judge whether the random gradient ends with the highest training loss under both schedules of Figure 8."""
    ends = {name: _last(methods, "loss") for name, methods in curves.items()}
    known = all(ends.values())
    poorest = all(max(losses, key=losses.__getitem__) == "random" for losses in ends.values()) if known else None
    figures = "; ".join(f"{name}: {_words(losses)}" for name, losses in ends.items())
    text = f"training loss of the last epoch: {figures}; {extent}"
    return judge("curves of schedules 2 and 3", section.claim("schedules"), poorest, text)


def _last(methods: Mapping[str, Curve], name: str, scale: float = 1.0) -> dict[str, float]:
    """Return by method the last known figure of a curve."""
    known = {method: [value for value in curve[name] if value is not None] for method, curve in methods.items()}
    return {method: scale * values[-1] for method, values in known.items() if values and method != "scaled"}


def _words(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{method} {value:.2f}" for method, value in figures.items())


def _curve(runs: RunGroup, workspace: Workspace) -> Curve:
    curves = workspace.result(runs.parts[0]).get("curves") or {}
    return {name: curves.get(name, []) for name in ("loss", "accuracy")}


def _pairs(curve: Curve, other: Curve, name: str) -> list[tuple[float, float]]:
    """Return the figures of two runs in the epochs where both have one."""
    return [(a, b) for a, b in zip(curve[name], other[name], strict=False) if a is not None and b is not None]


def _draw_curves(curves: Mapping[str, Mapping[str, Curve]]) -> "Figure":
    figure, axes = subplots(2, len(curves), (4.5 * len(curves), 7))
    for column, (name, methods) in enumerate(curves.items()):
        for line, kind in enumerate(("loss", "accuracy")):
            axis = axes[line][column]
            for method, curve in methods.items():
                axis.plot([nan if value is None else value for value in curve[kind]], label=method)
            axis.set(xlabel="epoch", title=f"{name}: measured {kind}")
    legend_beside(axes[0][-1])
    return figure


CURVES = "approximation-curves"


def _every_contender(budget: str) -> list[Part]:
    contenders = [run_group for name in NETWORKS for run_group in _contenders(name, budget).values()]
    later = [_scheduled(budget)[method, schedule] for method in METHODS for schedule in LATER_SCHEDULES]
    return all_parts([*contenders, *later, _references(budget)["full"]])


def _tradeoff(name: str, shows: str, quick: float, standard: float) -> Experiment:
    return Experiment(
        name,
        shows,
        {"quick": quick, "short": 2.0, "standard": standard, "full": None},
        lambda budget: all_parts(_contenders(name, budget)),
        lambda budget, workspace: conclude_tradeoff(name, budget, workspace),
    )


for _experiment in (
    _tradeoff("approximation-table2", "2-layer CNN: seconds and accuracy lost", 0.7, 150.0),
    _tradeoff("approximation-table3", "ResNet-20: seconds and accuracy lost", 1.3, 300.0),
    _tradeoff("approximation-table4", "VGG-19: seconds and accuracy lost", 0.7, 150.0),
    Experiment(
        "approximation-table5",
        "ResNet-20 under three approximation schedules, and ResNet-14",
        {"quick": 3.0, "short": 5.0, "standard": 700.0, "full": None},
        lambda budget: [
            *all_parts(_scheduled(budget)),
            *all_parts(_every_layer(budget)),
            *all_parts(_references(budget)),
        ],
        conclude_schedules,
    ),
    Experiment(
        CURVES,
        "loss and accuracy by epoch in the runs of Tables 2 to 5 (Figs. 5 to 8)",
        {"quick": 3.0, "short": 6.0, "standard": 800.0, "full": None},
        _every_contender,
        conclude_curves,
    ),
):
    add_experiment(_experiment)


STATEMENTS = "approximation-statements"
SCHEDULE_1 = Every(4, 2)
COUNTED_NETWORKS = {"resnet20": "resnet20", "vgg19": "vgg19_bn"}
QUARTER = 1 / 4
"""Of all layers and batches are approximated, as the paper intends."""
THIRD_LOW, THIRD_HIGH = 0.28, 0.38
"""Between which a ratio is about a third."""


def convolutions(workload: Workload) -> list[Convolution]:
    """Return the convolutions that the paper counts: those that halve a map on a shortcut are not among them."""
    every = [layer for layer in workload.array_layers if isinstance(layer, Convolution)]
    return [layer for layer in every if layer.kernel != (1, 1)]


def weight_gradient_share(workload: Workload) -> float:
    """Return the share of the weight gradient in the multiply-accumulates of a convolution's training."""
    layers = convolutions(workload)
    macs = {layer.name: layer.product(1).macs for layer in layers}
    whole = sum(macs[layer.name] * (3 if layer.input_gradient else 2) for layer in layers)
    return sum(macs.values()) / whole


def _drawn(section: Section) -> list[Verdict]:
    """Check on drawn maps that top-1 keeps one position of each, and whether its gradient is right on average.

    The outputs' gradients do not depend on the inputs in one case. In the other they rise with an input, as in a network.
    """
    import torch
    from torch import nn

    from adagp.layers.sites import survey
    from adagp.papers.approximation.source import choose, topk_gradient
    from adagp.sources.local import weight_gradient

    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(1, 1, 1, bias=False)
    site = survey(layer).sites[0]
    inputs, noise = (torch.rand(DRAWN, 1, 8, 8, generator=generator) for _ in range(2))
    kept = choose(noise.flatten(2), 1)[0].shape[-1]
    ratios = {
        name: float(topk_gradient(site, inputs, gradient, 1) / weight_gradient(site, inputs, gradient))
        for name, gradient in (("independent", noise), ("dependent", noise + inputs))
    }
    unbiased = all(abs(ratio - 1) < BIAS for ratio in ratios.values())
    text = (
        f"top-1 over exact, {DRAWN:,} drawn maps: {ratios['independent']:.3f} where the outputs' gradients do not depend on "
        f"the inputs, {ratios['dependent']:.3f} where they do"
    )
    return [
        judge(
            "positions kept", section.claim("sparsity"), kept == 1, f"{kept} of 64 positions of each map", "computed"
        ),
        judge("mean of the approximated gradient", section.claim("unbiased"), unbiased, text, "computed"),
    ]


DRAWN, BIAS = 20_000, 0.02
"""Maps that are drawn, and how far the mean gradient may be off: several standard errors of so many."""


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Count layers and work, and compare the paper's sentences with its own tables."""
    section, table_3, table_4 = (
        published(name) for name in (STATEMENTS, "approximation-table3", "approximation-table4")
    )
    workloads = {name: model_workload(model, "cifar10") for name, model in COUNTED_NETWORKS.items()}
    layers = {name: len(convolutions(workload)) for name, workload in workloads.items()}
    chosen = {name: sum(map(SCHEDULE_1.takes, range(count))) for name, count in layers.items()}
    cells = {"two_layers": 100 / 2 / 2, **{name: 100 * chosen[name] / layers[name] for name in layers}}
    share = 100 * weight_gradient_share(workloads["vgg19"])
    gains = [table.number("speedup", "zero").value for table in (table_3, table_4)]
    ratio = gains[0] / table_3.number("speedup", "smaller").value
    saved = Terms(reduced="the time saved; so much less time is 9.1 % faster")
    verdicts = [
        compare("share of the weight gradient, VGG-19", section.number("share", "weight_gradient"), share, "computed"),
        compare("a quarter of a third", section.number("most", "theoretical"), 100 * QUARTER / 3, "computed", saved),
        compare("largest gain of the tables", section.number("best", "abstract"), max(gains), "computed"),
        *(
            compare(f"layers of schedule 1, {name}", section.number("layers", name), chosen[name], "computed")
            for name in chosen
        ),
        *(
            compare(f"approximated layers and batches, {name}", section.number("cells", name), value, "computed")
            for name, value in cells.items()
        ),
        *_drawn(section),
        judge(
            "gain of zero over that of ResNet-14",
            section.claim("third"),
            THIRD_LOW <= ratio <= THIRD_HIGH,
            f"Table 3: {gains[0]:g} of {table_3.number('speedup', 'smaller').value:g} %, {ratio:.2f}",
            "computed",
        ),
    ]
    rows: list[dict[str, Any]] = [
        {"network": name, "convolutions": layers[name], "approximated": chosen[name]} for name in layers
    ]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (6, 4))
        series = {name: [row[name] for row in rows] for name in ("convolutions", "approximated")}
        grouped_bars(axes[0][0], list(layers), series, rotated=False)
        return figure

    return Conclusion(rows, verdicts, draw)


add_experiment(
    Experiment(
        STATEMENTS,
        "shares of work and layers that the text states",
        {"quick": 0.1, "standard": 0.1, "full": 0.1},
        lambda budget: (),
        conclude,
    )
)
