"""Load balancing on the masks of a trained run: half tiles against tiles as they are, next to random masks as dense."""

from collections.abc import Mapping
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from adagp.core.plan import Step
from adagp.papers.procrustes.hardware import SIDE, Tile, counts_of_mask, drawn_counts, inverse_speedup, unbalanced_share
from adagp.program.figures.style import subplots
from adagp.program.reproduce.bars import grouped_bars
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import READS_DATA, Part, Workspace
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import judge
from adagp.program.run.documents import MODERATE, POSITIVE, TableOf, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    from adagp.data.load import DEFAULT_DATA_DIR
    from adagp.data.loaders import image_loaders
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
