"""What a GP batch of `feedback` is worth, by network and batch size: the same samples in few large or in many small batches.

The noise of a gradient falls with the batch size, the bias of a prediction does not. Below the gradient noise scale, the batch
size at which noise and gradient are equally large, a smaller batch is the cheaper way to a step. Above it the number of steps
counts, and a GP batch should be worth more.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from adagp.papers.feedback.experiments import COMPARED, compare_methods
from adagp.program.figures.style import series_colour, subplots
from adagp.program.reproduce.experiment import READS_DATA, Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "worth-batch-size"
RATIOS = ("1:1", "2:1", "4:1")
RISE = 0.1
"""The share of a run in which the learning rate rises. Predictions should begin after it: `warmup` is a larger share."""
REFERENCE_SIZE = 128
"""The batch size that the learning rates of a network are given for; they grow with the square root of the batch size."""
_CNN: dict[str, Any] = {"rates": (0.02, 0.06, 0.2), "weight_decay": 5e-4}
_VIT: dict[str, Any] = {"rates": (3e-4, 1e-3, 3e-3), "optimizer": "adamw"}
_CIFAR: dict[str, dict[str, Any]] = {
    "six_conv_vgg_gap": {**_CNN, "width": 0.5},
    "resnet20": {**_CNN, "width": 0.5},
    "vgg13_bn": {**_CNN, "width": 0.125},
    "small_vit": {**_VIT, "width": 0.5},
}
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "dataset": "digits",
        "networks": {"digits_cnn": {"rates": (0.02, 0.06)}},
        "batch_sizes": (32, 128),
        "samples": 128 * 30,
        "seeds": 2,
        "large_batch": 512,
    },
    "short": {
        "dataset": "cifar10",
        "networks": {name: _CIFAR[name] for name in ("vgg13_bn", "six_conv_vgg_gap")},
        "batch_sizes": (32, 256, 2048),
        "samples": 51_200,
        "fewest_batches": 100,
        "warmup": 0.2,
        "ratios": ("1:1", "4:1"),
        "seeds": 2,
        "large_batch": 4096,
    },
    "standard": {
        "dataset": "cifar10",
        "networks": _CIFAR,
        "batch_sizes": (32, 128, 512, 2048),
        "samples": 102_400,
        "warmup": 0.2,
        "seeds": 3,
        "large_batch": 4096,
    },
    "full": {
        "dataset": "cifar10",
        "networks": {name: {**own, "width": 1.0} for name, own in _CIFAR.items()},
        "batch_sizes": (32, 128, 512, 2048),
        "samples": 1_024_000,
        "warmup": 0.2,
        "seeds": 5,
        "large_batch": 8192,
    },
}


@cache
def worth_parts(budget: str) -> dict[tuple[str, int], Part]:
    """Return a comparison for each network and batch size, on equally many samples unless these are too few large batches."""
    sizes = dict(_SIZES[budget])
    networks, batch_sizes, samples = (sizes.pop(name) for name in ("networks", "batch_sizes", "samples"))
    fewest, ratios, warmup = (
        sizes.pop(name, default) for name, default in (("fewest_batches", 1), ("ratios", RATIOS), ("warmup", RISE))
    )
    if sizes["dataset"] != "digits":
        sizes[READS_DATA] = True
    parts = {}
    for (model, own), batch_size in product(networks.items(), batch_sizes):
        scale = (batch_size / REFERENCE_SIZE) ** 0.5
        batches = max(samples // batch_size, fewest)
        options = {
            **sizes,
            **own,
            "experiment": NAME,
            "rates": tuple(float(f"{rate * scale:.2g}") for rate in own["rates"]),
            "model": model,
            "batch_size": batch_size,
            "batches": batches,
            "warmup_batches": max(1, round(warmup * batches)),
            "lr_warmup": RISE,
            "methods": ",".join(["bp", *(f"feedback@{ratio}" for ratio in ratios)]),
            "regimes": ("batches",),
            "curve": (0.4, 0.6, 0.8),
            "points": 3,
        }
        label = f"{NAME}-{model}-{batch_size}-{budget}"
        parts[model, batch_size] = Part(compare_methods, label, options, weight=100.0, shape=COMPARED, rank=3)
    return parts


def _finished(budget: str, workspace: Workspace) -> dict[tuple[str, int], Mapping[str, Any]]:
    return {key: workspace.result(part) for key, part in worth_parts(budget).items() if workspace.finished(part)}


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Judge whether a GP batch is worth more at the largest batch size than at the smallest, network by network."""
    reports = _finished(budget, workspace)
    rows = [row for (model, size), report in reports.items() for row in _rows(model, size, report)]
    known = {model: ends for model in _models(rows) if (ends := _growth(rows, model)) is not None}
    text = "; ".join(f"{model} {low:.2f} to {high:.2f}" for model, (low, high) in known.items()) or "no worth was found"
    text += f"; {_SIZES[budget]['seeds']} seeds"
    holds = all(high > low for low, high in known.values()) if known else None
    verdict = judge(
        "worth of a GP batch at 1:1, smallest to largest batch", published(NAME).claim("larger"), holds, text
    )
    left = len(worth_parts(budget)) - len(reports)
    missing = f"{left} of {len(worth_parts(budget))} comparisons are not finished" if left else ""
    return Conclusion(rows, [verdict], lambda: _draw(rows), missing)


def _rows(model: str, size: int, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    methods = report["regimes"]["batches"]["methods"]
    worth = (report["worth"] or {"methods": {}})["methods"]
    return [
        {
            "model": model,
            "batch_size": size,
            "method": name,
            "seeds": report["seeds"],
            "accuracy_mean": record["accuracy_mean"],
            "backprop_accuracy_mean": methods["bp"]["accuracy_mean"],
            "worth": worth.get(name, {}).get("worth"),
            "worth_low": worth.get(name, {}).get("interval", [None, None])[0],
            "worth_high": worth.get(name, {}).get("interval", [None, None])[1],
            "break_even": worth.get(name, {}).get("platforms", {}).get("accelerator", {}).get("break_even"),
            "rho_squared": record.get("rho_squared"),
            "noise_scale": record.get("noise_scale"),
        }
        for name, record in methods.items()
        if name != "bp"
    ]


def _models(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _with_worth(rows: Sequence[Mapping[str, Any]], model: str, ratio: str) -> list[Mapping[str, Any]]:
    """Return the rows of a network and a ratio whose worth is known, by batch size."""
    own = [row for row in rows if (row["model"], row["method"]) == (model, f"feedback@{ratio}")]
    return sorted((row for row in own if row["worth"] is not None), key=lambda row: row["batch_size"])


def _growth(rows: Sequence[Mapping[str, Any]], model: str) -> tuple[float, float] | None:
    """Return the worth at 1:1 with the smallest and the largest batch size for which it is known; None for fewer than two."""
    known = _with_worth(rows, model, RATIOS[0])
    return (known[0]["worth"], known[-1]["worth"]) if len(known) > 1 else None


def _draw(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """Draw worth against batch size for each network, with the worth that pays on the accelerator."""
    models = _models(rows)
    figure, (axes,) = subplots(1, max(1, len(models)), (1.6 + 3.6 * max(1, len(models)), 3.6), share_y=True)
    for axis, model in zip(axes, models, strict=False):
        for index, ratio in enumerate(RATIOS):
            known = _with_worth(rows, model, ratio)
            if known:
                sizes, colour = [row["batch_size"] for row in known], series_colour(index)
                axis.plot(sizes, [row["worth"] for row in known], "o-", color=colour, label=f"worth, {ratio}")
                needed = [row["break_even"] for row in known]
                axis.plot(sizes, needed, ":", color=colour, label=f"break-even, {ratio} (accelerator)")
        scales = [row["noise_scale"] for row in rows if row["model"] == model and row["noise_scale"]]
        if scales:
            axis.axvline(sum(scales) / len(scales), linestyle="--", color="grey", label="gradient noise scale")
        all_sizes = sorted({row["batch_size"] for row in rows})
        axis.set(title=model, xlabel="batch size", xscale="log", ylim=(0, None))
        axis.minorticks_off()
        axis.set_xticks(all_sizes, [f"{size:,}" for size in all_sizes])
        axis.legend(fontsize=7)
    axes[0].set_ylabel("worth of a GP batch, in BP batches")
    return figure


add_experiment(
    Experiment(
        NAME,
        "what a GP batch of feedback is worth, by network, batch size and ratio, with the gradient noise scale",
        {"quick": 8.0, "short": 60.0, "standard": 300.0, "full": None},
        lambda budget: list(worth_parts(budget).values()),
        conclude,
        enough=lambda budget, workspace: bool(_finished(budget, workspace)),
    )
)
