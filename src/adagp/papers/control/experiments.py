"""The published experiment: a vision transformer trained by backprop and with control variates, at equal cost.

The authors' predictor is derived from the neural tangent kernel and its code is not public; the one here is `feedback`. As many
more batches are trained with control variates as they are cheaper: (f + (1 - f) price) of a batch by backprop, with the price
of a sample that is predicted only, which is an option of the method. The measured seconds of both are in the table.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from adagp.core.methods import find_method
from adagp.program.figures.style import series_colour, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VIT = "control-vit"
SHARES = (0.25, 0.5)
_RUNS: dict[str, Any] = {"model": "small_vit", "optimizer": "adamw", "lr_scheduler": "cosine", "lr_warmup": 0.1}
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {"dataset": "digits", "width": 0.25, "batch_size": 64, "lr": 2e-3, "batches": 110, "seeds": 2},
    "standard": {"dataset": "cifar10", "width": 0.5, "batch_size": 128, "lr": 1e-3, "batches": 1000, "seeds": 3},
    "full": {"dataset": "cifar10", "width": 1.0, "batch_size": 128, "lr": 1e-3, "batches": 20_000, "seeds": 5},
}


def equal_cost_batches(batches: int, share: float) -> int:
    """Return how many batches with control variates cost as much as `batches` by backprop."""
    price = float(find_method("control").defaults["price"])
    return round(batches / (share + (1 - share) * price))


@cache
def _groups(budget: str) -> dict[str, RunGroup]:
    """Return the runs by what they are called in the table."""
    sizes = dict(_SIZES[budget])
    seeds, batches = sizes.pop("seeds"), sizes.pop("batches")
    groups = {"backprop": group(seeds, 20.0, **_RUNS, **sizes, method="bp", batches=batches)}
    for share in SHARES:
        length = equal_cost_batches(batches, share)
        own: dict[str, Any] = {
            "method": "control",
            "true_share": str(share),
            "batches": length,
            "warmup_batches": length // 10,
        }
        groups[f"control, {share:g} by backprop"] = group(seeds, 20.0, **_RUNS, **sizes, **own)
    return groups


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Judge whether the best share is ahead of backprop with every seed."""
    groups = _groups(budget)
    rows = [{"runs": name, **runs.row(workspace)} for name, runs in groups.items()]
    plain = groups["backprop"].values(workspace)
    others = {name: runs.values(workspace) for name, runs in groups.items() if name != "backprop"}
    best = max(others, key=lambda name: sum(others[name]))
    ahead = [own - other for own, other in zip(others[best], plain, strict=True)]
    text = f"backprop {mean_and_range(plain)} %, " + ", ".join(
        f"{name} {mean_and_range(own)} %" for name, own in others.items()
    )
    claim = published(VIT).claim("accuracy")
    verdict = judge(
        "accuracy for the same cost", claim, all(points > 0 for points in ahead), f"{text}; {groups[best].extent}"
    )
    return Conclusion(rows, [verdict], lambda: _draw(groups, workspace))


def _draw(groups: Mapping[str, RunGroup], workspace: Workspace) -> "Figure":
    figure, ((axis,),) = subplots(1, 1, (6, 4))
    for index, runs in enumerate(groups.values()):
        values = runs.values(workspace)
        axis.plot([index] * len(values), values, "o", color=series_colour(index))
    axis.set_xticks(range(len(groups)), list(groups), rotation=15, ha="right")
    axis.set(ylabel="test accuracy, %", title="A vision transformer for the same cost, a point a seed")
    return figure


add_experiment(
    Experiment(
        VIT,
        "a vision transformer with control variates against backprop for the same cost",
        {"quick": 2.0, "standard": 90.0, "full": None},
        lambda budget: all_parts(_groups(budget)),
        conclude,
    ),
    needs=("feedback",),
)
