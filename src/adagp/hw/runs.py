"""Whole training runs as counts of batches under plans: from a schedule, or from the phases that a real run recorded."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from adagp.errors import OptionError, RunError
from adagp.hw.duties import source_work
from adagp.methods import find_method
from adagp.plan import BACKPROP, BACKPROP_ALL, WARM_UP, Phase, Plan, Step
from adagp.schedules import Schedule
from adagp.schedules.base import predicted_plan

PlanKey = tuple[str, bool, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Run:
    """`batch` samples a batch, and how many batches there are under each plan.

    `predictor_learns` says whether backprop batches also train a predictor.
    """

    batch: int
    counts: tuple[tuple[Plan, int], ...]
    predictor_learns: bool = True

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise OptionError(f"batch is {self.batch}; it must be 1 or more.")

    @property
    def batches(self) -> int:
        """All batches of the run."""
        return sum(count for _, count in self.counts)

    @property
    def phases(self) -> Counter[Phase]:
        """Batches of each phase."""
        totals: Counter[Phase] = Counter()
        for plan, count in self.counts:
            totals[plan.phase] += count
        return totals


def scheduled_run(schedule: Schedule, epochs: int, samples: int, batch: int) -> Run:
    """Return the run of `epochs` over `samples` samples under `schedule`; a last, smaller batch counts as one."""
    for name, value in (("epochs", epochs), ("samples", samples), ("batch", batch)):
        if value < 1:
            raise OptionError(f"{name} is {value}; it must be 1 or more.")
    counts = _counts(schedule, epochs, -(-samples // batch))
    return Run(batch, counts, predictor_learns=any(source_work(name).predictor for name in schedule.sources))


def plan_key(plan: Plan) -> PlanKey:
    """Return what decides a batch's work: all of its plan but the name of its phase."""
    return plan.default, plan.hold_rest, tuple(sorted(plan.by_site.items()))


@lru_cache(maxsize=256)
def _counts(schedule: Schedule, epochs: int, batches: int) -> tuple[tuple[Plan, int], ...]:
    """Count plans epoch by epoch; epochs of one label are alike, so one of each is walked."""
    plans: dict[tuple[Phase, PlanKey], tuple[Plan, int]] = {}
    for label, times in Counter(map(schedule.label, range(epochs))).items():
        epoch = next(epoch for epoch in range(epochs) if schedule.label(epoch) == label)
        for batch in range(batches):
            plan = schedule.plan(Step(epoch, batch))
            key = (plan.phase, plan_key(plan))
            plans[key] = (plan, plans.get(key, (plan, 0))[1] + times)
    return tuple(plans.values())


@dataclass(frozen=True)
class Recorded:
    """What a run folder says: the run itself, and the model and data set it trained."""

    run: Run
    epochs: int
    config: dict[str, Any]


def recorded_run(folder: Path) -> Recorded:
    """Read the phases that a training run recorded.

    Each line of `metrics.jsonl` has an epoch's `batches`: `warmup`, `bp` (the warm-up among them), `gp` and `guarded`
    (predicted batches whose prediction was refused). `config.json` has the batch size, the model and the data set.
    """
    config = json.loads(_read(folder, "config.json"))
    epochs = [json.loads(line)["batches"] for line in _read(folder, "metrics.jsonl").splitlines()]
    if not epochs:
        raise RunError(f"run {folder} has recorded no epoch yet.")
    source = find_method(str(config.get("method", "adagp"))).source
    return Recorded(replayed_run(epochs, config["batch_size"], source), len(epochs), config)


def replayed_run(epochs: Iterable[Mapping[str, int]], batch: int, source: str) -> Run:
    """Return the run whose epochs had these batches by kind (see `recorded_run`), of `batch` samples each.

    Its GP batches took their gradients from `source`, none for a run by backprop alone.
    """
    totals: Counter[str] = Counter()
    for batches in epochs:
        totals.update(batches)
    predicted = totals["gp"] + totals["guarded"]
    plan = predicted_plan(source or BACKPROP)
    counts = ((WARM_UP, totals["warmup"]), (BACKPROP_ALL, totals["bp"] - totals["warmup"]), (plan, predicted))
    learns = source_work(plan.default).predictor and totals["warmup"] + predicted > 0
    return Run(batch, counts, predictor_learns=learns)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError:
        raise RunError(f"run {folder} has no {name}; `adagp train` writes it.") from None
