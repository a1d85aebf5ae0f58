"""Lecture 11 on noise: Gaussian noise on the weight gradients of backprop, of fixed or of decreasing variance.

The lecture gives neither network nor variance. The decreasing variance is that of Neelakantan et al. (arXiv 1511.06807),
1 / (1 + t)^0.55 after t steps; the fixed one is its mean over the run, so both add as much noise.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from math import sqrt
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.core.intervals import interval
from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import READS_DATA, Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Claim, published
from adagp.program.reproduce.training import mean_and_range
from adagp.program.reproduce.verdict import Verdict, judge
from adagp.program.run.documents import MODERATE, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "lecture-noise"
NONE, FIXED, DECREASING = "none", "fixed", "decreasing"
LEVELS = (0.001, 0.003, 0.01)
"""Roots of the noise's mean variance over a run: our choice."""
EXPONENT = 0.55
"""Of the variance's decrease with the steps."""
SEEDS = 5
SIZES: Mapping[str, dict[str, Any]] = {
    "quick": {"dataset": "digits", "model": "digits_cnn", "width": 1.0, "epochs": 8, "batch_size": 64, "rate": 0.04},
    "short": {
        "dataset": "cifar10",
        "model": "six_conv_vgg",
        "width": 0.5,
        "epochs": 5,
        "batch_size": 32,
        "rate": 0.02,
        "validation": 0.975,
        "test_samples": 1000,
    },
    "standard": {
        "dataset": "cifar10",
        "model": "six_conv_vgg",
        "width": 0.5,
        "epochs": 10,
        "batch_size": 64,
        "rate": 0.02,
        "validation": 0.8,
        "test_samples": 4000,
    },
    "full": {"dataset": "cifar10", "model": "resnet20", "width": 1.0, "epochs": 90, "batch_size": 128, "rate": 0.1},
}


def variants() -> Iterator[tuple[str, str, float]]:
    """Yield the name of each variant, its kind of noise and its level."""
    yield NONE, NONE, 0.0
    for level in LEVELS:
        for kind in (FIXED, DECREASING):
            yield f"{kind} {level:g}", kind, level


def deviations(kind: str, level: float, steps: int) -> list[float]:
    """Return the noise's standard deviation in each step; the mean of its square is that of `level`."""
    if kind != DECREASING:
        return [level] * steps
    variances = [(1 + step) ** -EXPONENT for step in range(steps)]
    return [level * sqrt(variance / mean(variances)) for variance in variances]


def train_with_noise(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Train one seed by backprop with each kind of noise; return accuracy, loss and overfitting."""
    results: dict[str, Any] = {}
    for name, kind, level in variants():
        trained = _train(part.options, kind, level, workspace)
        if trained is None:
            return None
        results[name] = trained
    return results


def _train(options: Mapping[str, Any], kind: str, level: float, workspace: Workspace) -> dict[str, float] | None:
    import torch
    from torch.nn.functional import cross_entropy

    from adagp.data.loaders import image_loaders
    from adagp.data.registry import DEFAULT_DATA_DIR
    from adagp.models.build import build_model

    torch.manual_seed(options["seed"])
    generator = torch.Generator().manual_seed(options["seed"])
    data = image_loaders(
        options["dataset"],
        options["batch_size"],
        seed=options["seed"],
        data_dir=workspace.data_dir or DEFAULT_DATA_DIR,
        validation=options.get("validation", 0.0),
        test_samples=options.get("test_samples"),
    )
    model = build_model(options["model"], classes=data.classes, image=data.shape, width=options["width"])
    model = model.to(workspace.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options["rate"], momentum=0.9)
    sizes = deviations(kind, level, options["epochs"] * len(data.train))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(sizes))
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    losses: list[float] = []
    right: list[float] = []
    remaining = iter(sizes)
    for epoch in range(options["epochs"]):
        model.train()
        losses.clear()
        right.clear()
        for inputs, targets in data.train.epoch(epoch):
            if workspace.stop():
                return None
            outputs = model(inputs.to(workspace.device))
            loss = cross_entropy(outputs, targets.to(workspace.device))
            optimizer.zero_grad()
            loss.backward()
            size = next(remaining)
            for weight in weights if size else ():
                assert weight.grad is not None
                weight.grad += size * torch.randn(weight.shape, generator=generator).to(weight.device)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            right.append((outputs.argmax(1).cpu() == targets).float().mean().item())
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for inputs, targets in data.test.epoch(0):
            hits += int((model(inputs.to(workspace.device)).argmax(1).cpu() == targets).sum())
            total += len(targets)
    accuracy = 100 * hits / total
    return {"accuracy": accuracy, "loss": mean(losses), "overfitting": 100 * mean(right) - accuracy}


_TRAINED = record_of(
    {name: record_of(dict.fromkeys(("accuracy", "loss", "overfitting"), MODERATE)) for name, *_ in variants()}
)


@cache
def parts(budget: str) -> tuple[Part, ...]:
    """Return a part for each seed."""
    size = SIZES[budget]
    more = {} if size["dataset"] == "digits" else {READS_DATA: True}
    return tuple(
        Part(train_with_noise, f"{size['dataset']}-s{seed}", {**size, **more, "seed": seed}, 30.0, _TRAINED)
        for seed in range(SEEDS)
    )


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Judge whether noise makes training more accurate, and decreasing noise more than fixed noise."""
    section = published(NAME)
    results = [workspace.result(part) for part in parts(budget)]
    rows = [
        {
            "noise": name,
            "seeds": len(results),
            **{f"measured_{figure}": mean(result[name][figure] for result in results) for figure in results[0][name]},
        }
        for name, *_ in variants()
    ]
    verdicts = [
        _judge_gains(
            f"{kind} noise {level:g} over none", section.claim("noise"), results, [(f"{kind} {level:g}", NONE)], budget
        )
        for level in LEVELS
        for kind in (FIXED, DECREASING)
    ]
    pairs = [(f"{DECREASING} {level:g}", f"{FIXED} {level:g}") for level in LEVELS]
    verdicts.append(_judge_gains("decreasing over fixed noise", section.claim("decreasing"), results, pairs, budget))

    def draw() -> "Figure":
        figure, (axes,) = subplots(1, 1, (8, 4.5))
        axes[0].bar([row["noise"] for row in rows], [row["measured_accuracy"] for row in rows])
        axes[0].set(ylabel="measured accuracy, %", xlabel="noise on the weight gradients")
        return figure

    return Conclusion(rows, verdicts, draw)


def _judge_gains(
    quantity: str, claim: Claim, results: list[dict[str, Any]], pairs: list[tuple[str, str]], budget: str
) -> Verdict:
    """Judge gains in accuracy, paired by seed: they hold if their 95% interval is above 0."""
    gains = [mean(result[one]["accuracy"] - result[other]["accuracy"] for one, other in pairs) for result in results]
    average = interval(gains)
    names = dict.fromkeys(name for pair in pairs for name in pair)
    figures = ", ".join(f"{name} {mean_and_range([result[name]['accuracy'] for result in results])}" for name in names)
    spread = ", ".join(f"{name} {mean(result[name]['overfitting'] for result in results):+.2f}" for name in names)
    low = None if average is None or average.low is None else average.low
    text = f"{mean(gains):+.2f} points"
    if average is not None and average.low is not None:
        text += f", 95% interval {average.low:+.2f} to {average.high:+.2f}"
    size = SIZES[budget]
    share = f", {1 - size['validation']:.3g} of the training images" if "validation" in size else ""
    text += (
        f": {figures} %; training less test accuracy: {spread}; {len(results)} seeds, {size['epochs']} epochs{share}"
    )
    return judge(quantity, claim, None if low is None else low > 0, text)


add_experiment(
    Experiment(
        NAME,
        "Gaussian noise on the weight gradients, of fixed or of decreasing variance",
        {"quick": 2.0, "short": 4.0, "standard": 60.0, "full": None},
        parts,
        conclude,
    )
)
