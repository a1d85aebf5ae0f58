"""Procrustes: training with a tenth of the weights (DropBack with decaying initial weights), with its controls; load balancing
on the masks of a trained run.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from adagp.core.plan import Step
from adagp.hw.systems import LayerRecord
from adagp.papers.procrustes.hardware import (
    SIDE,
    Tile,
    counts_of_mask,
    drawn_counts,
    inverse_speedup,
    training_cost,
    unbalanced_share,
)
from adagp.program.figures.style import COLOURS, grouped_bars, legend_beside, subplots
from adagp.program.reproduce.experiment import READS_DATA, Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, group, mean_and_range
from adagp.program.reproduce.verdict import Terms, compare, judge
from adagp.program.run.documents import MODERATE, POSITIVE, TableOf, record_of
from adagp.program.workloads import model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TRAINING, HARDWARE, RULE = "procrustes-training", "procrustes-hardware", "procrustes-rule"
NETWORKS = ("vgg16_bn", "resnet50", "densenet121", "mobilenet_v2", "six_conv_vgg")
SEEDS = 3
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"dataset": "digits", "model": "digits_cnn", "epochs": 10, "batch_size": 32},
    "standard": {"dataset": "cifar10", "model": "six_conv_vgg", "batches": 400, "batch_size": 64},
    "full": {"dataset": "cifar10", "model": "vgg16_bn", "epochs": 500, "batch_size": 64},
}
"""As the authors, without momentum. The learning rate falls by a cosine in place of steps, over fewer epochs."""
COMMON: Mapping[str, Any] = {"lr": 0.1, "momentum": 0.0, "lr_scheduler": "cosine"}
EQUAL_WIDTH = {"quick": 0.3125, "standard": 0.3125, "full": 0.3125}
"""The width at which a dense net has about a tenth of the weights."""
DENSE, TENTH, LECTURE = "dense", "0.1", "0.1, initial weights stay"
"""The last one is the algorithm as Lecture 11 prints it."""
DROPPED: Mapping[str, Mapping[str, Any]] = {
    "0.2": {"keep": 0.2},
    TENTH: {"keep": 0.1},
    "0.05": {"keep": 0.05},
    "0.1, estimated threshold": {"keep": 0.1, "keep_threshold": "estimate"},
    "0.1, magnitude": {"keep": 0.1, "keep_rule": "magnitude"},
    LECTURE: {"keep": 0.1, "keep_decay": 1.0},
}


@cache
def _groups(budget: str) -> dict[str, RunGroup]:
    seeds = 1 if budget == "full" else SEEDS
    weight = 5.0 if budget == "quick" else 100.0

    def runs(method: str = "bp", **more: Any) -> RunGroup:
        return group(seeds, weight, **SETTINGS[budget], **COMMON, method=method, **more)

    predicted = {"ratio": "1:1", "warmup_batches": 60}
    return {
        DENSE: runs(),
        **{name: runs(**options) for name, options in DROPPED.items()},
        "dense, a tenth of the weights": runs(width=EQUAL_WIDTH[budget]),
        "adagp": runs("adagp", **predicted),
        "adagp, 0.1": runs("adagp", **predicted, keep=0.1),
        "feedback": runs("feedback", **predicted),
        "feedback, 0.1": runs("feedback", **predicted, keep=0.1),
    }


def training_parts(budget: str) -> Sequence[Part]:
    """Return the runs of all groups, seed by seed, so that a study that is stopped has something of each."""
    groups = list(_groups(budget).values())
    return [run_group.parts[seed] for seed in range(len(groups[0].parts)) for run_group in groups]


def conclude_training(budget: str, workspace: Workspace) -> Conclusion:
    """Compare sparse training with dense, with a dense net of as many weights, and with ranking by magnitude."""
    section, runs = published(TRAINING), _groups(budget)
    rows = [
        {
            "run": name,
            "keep": run_group.options.get("keep"),
            "rule": run_group.options.get("keep_rule"),
            **run_group.row(workspace),
        }
        for name, run_group in runs.items()
    ]
    accuracies = {name: run_group.values(workspace) for name, run_group in runs.items()}
    text = ", ".join(f"{name} {mean_and_range(values)} %" for name, values in accuracies.items())
    loss = mean(accuracies[DENSE]) - mean(accuracies[TENTH])
    measured = f"{text}; {runs[DENSE].extent}; lost at a tenth: {loss:.2f} points"
    printed = published(RULE)
    stays = mean(accuracies[DENSE]) - mean(accuracies[LECTURE])
    verdicts = [
        judge("accuracy with a tenth of the weights", section.claim("kept"), loss <= section.slack, measured),
        judge(
            "accuracy, initial weights stay",
            printed.claim("kept"),
            stays <= printed.slack,
            f"lost: {stays:.2f}; {text}; {runs[DENSE].extent}",
        ),
    ]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (11, 5))
        accuracy_bars(axes, workspace, runs)
        return figure

    return Conclusion(rows, verdicts, draw)


def printed_rule(steps: int = 30, keep: int = 10) -> tuple[Any, Any]:
    """Train a small regression by the rule of Lecture 11 and by DropBack without decay; return how far the weights moved."""
    import torch
    from torch import nn

    from adagp.layers.sites import survey
    from adagp.papers.procrustes.dropback import DropBack

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 10, generator=generator, dtype=torch.float64)
    targets = torch.randn(64, 10, generator=generator, dtype=torch.float64)
    start = torch.randn(10, 10, generator=generator, dtype=torch.float64)
    model = nn.Linear(10, 10, bias=False, dtype=torch.float64)
    model.weight.data.copy_(start)
    hook = DropBack(keep / start.numel(), decay=1.0, threshold="sort")
    hook.bind(survey(model))
    printed, rate = start.clone(), 0.05
    for number in range(steps):
        update = rate * (printed @ inputs.T - targets.T) @ inputs / len(inputs)
        # Of tracked weights all that was accumulated, of pruned ones (which are where they began) the present update.
        accumulated = (printed - update - start).abs()
        mask = accumulated >= accumulated.flatten().topk(keep).values[-1]
        printed = torch.where(mask, printed - update, start)
        model.weight.data -= rate * (model.weight.data @ inputs.T - targets.T) @ inputs / len(inputs)
        hook.after_step(Step(0, number))
    return printed - start, model.weight.data - start


def conclude_rule(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the rule of Lecture 11, step by step, with DropBack whose initial weights stay."""
    section = published(RULE)
    printed, ours = printed_rule()
    off = float((printed - ours).abs().max())
    moved = {"printed": 100 * float((printed != 0).double().mean()), "ours": 100 * float((ours != 0).double().mean())}
    verdicts = [
        compare("weights that moved", section.number("tracked", "most"), moved["ours"], "computed"),
        judge(
            "the printed rule",
            section.claim("rule"),
            off < 1e-12,
            f"30 steps of 100 weights; off by {off:.1e}",
            "computed",
        ),
    ]
    rows = [{"rule": name, "moved_percent": value} for name, value in moved.items()]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (5, 4))
        axes.bar(list(moved), list(moved.values()))
        axes.set(ylabel="% of the weights that moved")
        return figure

    return Conclusion(rows, verdicts, draw)


def simulate_procrustes(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return the modelled gain of a model over the same array with all weights, at the part's densities."""
    workload = model_workload(part.options["model"], "cifar10")
    layers = {
        layer.name: LayerRecord(part.options["weights"], part.options["inputs"] if index else 1.0)
        for index, layer in enumerate(workload.array_layers)
    }
    return dict(training_cost(workload, 64, layers).notes)


_GAINS = record_of({"speed-up over dense on the same array": MODERATE, "energy of dense over ours": MODERATE})


@cache
def _modelled(budget: str) -> tuple[Part, ...]:
    return tuple(
        Part(
            simulate_procrustes,
            f"{model}-{weights:.3g}",
            {"model": model, "weights": weights, "inputs": 0.5},
            shape=_GAINS,
        )
        for model in NETWORKS
        for weights in (0.2, 0.1, round(1 / 11.7, 6))
    )


def conclude_hardware(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the modelled speed-up and energy by network and density."""
    section = published(HARDWARE)
    rows: list[dict[str, Any]] = [{**part.options, **workspace.result(part)} for part in _modelled(budget)]
    unlike = Terms("other networks and assumed densities; energies are ratios of another chip")
    quantities = {"speed": "speed-up over dense on the same array", "energy": "energy of dense over ours"}
    verdicts = [
        compare(f"highest {words}", section.number(name), max(float(row[words]) for row in rows), "modelled", unlike)
        for name, words in quantities.items()
    ]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (8, 5))
        for number, model in enumerate(NETWORKS):
            own = [row for row in rows if row["model"] == model]
            axes.plot(
                [row["weights"] for row in own],
                [row[quantities["speed"]] for row in own],
                marker="o",
                color=COLOURS[number],
                label=model,
            )
        axes.set(xlabel="weight density", ylabel="modelled speed-up over dense")
        legend_beside(axes)
        return figure

    return Conclusion(rows, verdicts, draw)


add_experiment(
    Experiment(
        TRAINING,
        "sparse training with DropBack against dense training, small dense nets and magnitude",
        {"quick": 1.9, "standard": 75.0, "full": None},
        training_parts,
        conclude_training,
    ),
    needs=("adagp", "feedback"),
)
add_experiment(
    Experiment(
        RULE,
        "DropBack's update rule as Lecture 11 prints it, step by step",
        {"quick": 0.1, "standard": 0.1, "full": 0.1},
        lambda budget: (),
        conclude_rule,
    )
)
add_experiment(
    Experiment(
        HARDWARE,
        "the sparse array against the same array with all weights, by density",
        {"quick": 0.2, "standard": 0.2, "full": 0.2},
        _modelled,
        conclude_hardware,
    )
)


MASKS = "procrustes-masks"
RUNS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"dataset": "digits", "model": "digits_cnn", "batches": 450, "batch_size": 32},
    "standard": {"dataset": "cifar10", "model": "six_conv_vgg", "batches": 400, "batch_size": 64, READS_DATA: True},
    "full": {"dataset": "cifar10", "model": "vgg16_bn", "batches": 20_000, "batch_size": 64, READS_DATA: True},
}
KEEP, RATE, FILTERS = 0.1, 0.1, 32
"""The share of the weights that may move, the learning rate, and the filters of a tile."""


def trained_masks(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Train with DropBack; return for each layer the density of its mask and the times of its tiles over dense ones."""
    import torch
    from torch.nn.functional import cross_entropy

    from adagp.data.loaders import image_loaders
    from adagp.data.registry import DEFAULT_DATA_DIR
    from adagp.layers.sites import survey
    from adagp.models.build import build_model
    from adagp.papers.procrustes.dropback import DropBack

    options = part.options
    torch.manual_seed(0)
    data = image_loaders(options["dataset"], options["batch_size"], data_dir=workspace.data_dir or DEFAULT_DATA_DIR)
    model = build_model(options["model"], classes=data.classes, image=data.shape).to(workspace.device)
    optimizer, hook, sites = torch.optim.SGD(model.parameters(), lr=RATE), DropBack(KEEP), survey(model).sites
    hook.bind(survey(model))
    done = 0
    while done < options["batches"]:
        for inputs, targets in data.train.epoch(done // len(data.train)):
            if workspace.stop():
                return None
            optimizer.zero_grad()
            cross_entropy(model(inputs.to(workspace.device)), targets.to(workspace.device)).backward()
            optimizer.step()
            hook.after_step(Step(0, done))
            done += 1
            if done == options["batches"]:
                break
    random = np.random.default_rng(0)
    return {
        site.name: _balance(
            (site.weight.detach().cpu() != 0).flatten(2 if site.weight.dim() > 2 else 1).numpy(), random
        )
        for site in sites
    }


def _balance(mask: Any, random: np.random.Generator) -> dict[str, float]:
    shaped = mask if mask.ndim == 3 else mask[:, :, None]
    filters, channels, kernel = shaped.shape
    tile = Tile(2, min(FILTERS, filters), kernel)
    own, dense = counts_of_mask(shaped, tile, SIDE)
    drawn, drawn_dense = drawn_counts(channels, filters, tile, SIDE, float(shaped.mean()), random)
    return {
        "weights": float(shaped.size),
        "density": float(shaped.mean()),
        "unbalanced": unbalanced_share(own, dense),
        "balanced": inverse_speedup(own, dense),
        "random_unbalanced": unbalanced_share(drawn, drawn_dense),
        "random_balanced": inverse_speedup(drawn, drawn_dense),
    }


_SHARES = ("density", "unbalanced", "balanced", "random_unbalanced", "random_balanced")
_LAYER = record_of({"weights": POSITIVE, **dict.fromkeys(_SHARES, MODERATE)})


@cache
def _part(budget: str) -> Part:
    return Part(trained_masks, RUNS[budget]["model"], RUNS[budget], 8.0, TableOf(_LAYER))


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the tiles' times with and without balancing, weighted by the layers' weights."""
    layers = workspace.result(_part(budget))
    rows = [{"layer": name, **figures} for name, figures in layers.items()]
    weights = sum(row["weights"] for row in rows)
    shares = {name: sum(row["weights"] * row[name] for row in rows) / weights for name in _SHARES}
    gains = {name: 1 / share if share else 0.0 for name, share in shares.items()}
    densities = [row["density"] for row in rows]
    text = (
        f"{RUNS[budget]['model']} on {RUNS[budget]['dataset']}, one seed, {len(rows)} layers: {gains['unbalanced']:.2f} times "
        f"as fast as dense tiles, balanced {gains['balanced']:.2f}, ideal {gains['density']:.2f}; random masks as dense "
        f"{gains['random_unbalanced']:.2f}, balanced {gains['random_balanced']:.2f}; densities {min(densities):.2f} to "
        f"{max(densities):.2f}, mean {mean(densities):.2f}"
    )
    better = shares["balanced"] < shares["unbalanced"]
    verdicts = [judge("half tiles on trained masks", published(MASKS).claim("balance"), better, text)]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (10, 4.5))
        names = ("density", "balanced", "unbalanced")
        grouped_bars(axes, [row["layer"] for row in rows], {name: [row[name] for row in rows] for name in names})
        axes.set(ylabel="time of the tiles over dense ones")
        return figure

    return Conclusion(rows, verdicts, draw)


add_experiment(
    Experiment(
        MASKS,
        "load balancing on the masks of a trained run",
        {"quick": 0.2, "standard": 5.0, "full": None},
        lambda budget: [_part(budget)],
        conclude,
    )
)
