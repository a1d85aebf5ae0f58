"""Whole training runs as counts of batches under plans: from a schedule, or from the phases that a real run recorded."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from adagp.core.plan import BACKPROP, BACKPROP_ALL, WARM_UP, Phase, Plan, Step, predicted_plan
from adagp.errors import OptionError
from adagp.hw.stages import source_work
from adagp.hw.workload import Convolution, Linear, Workload
from adagp.schedules import Layer, Layout, Schedule


def workload_layout(workload: Workload) -> Layout:
    """Return the trained layers of `workload`, each at its first use and with the cost of all its uses.

    A workload does not name the parameters that belong to no site. Each layer's own name stands for those of the layer and
    of the element-wise work after it: a plan that holds this name holds them.
    """
    layers: dict[str, Layer] = {}
    for layer in workload.array_layers:
        if layer.trainable:
            kind = "conv" if isinstance(layer, Convolution) else "linear" if isinstance(layer, Linear) else "other"
            macs = layer.product(1).macs + (layers[layer.name].macs if layer.name in layers else 0)
            layers[layer.name] = Layer(layer.name, kind, is_site=True, macs=macs, other_parameters=(layer.name,))
    return Layout(tuple(layers.values()), measured=True)


MOST_WALKED = 1_000_000
"""The most batches of an epoch that are counted one by one; of a schedule that repeats, one period is counted."""
PlanKey = tuple[str, bool, frozenset[str], tuple[tuple[str, str], ...]]


Figures = Mapping[str, Mapping[str, float | None]]
"""What an epoch has measured, by site and name."""


@dataclass(frozen=True)
class RunRecording:
    """A recorded run: its configuration, and for each epoch its batches and figures."""

    config: Mapping[str, Any]
    epochs: tuple[tuple[int, Figures], ...]


@dataclass(frozen=True)
class Run:
    """`batch` samples per batch, and how many batches there are under each plan.

    `recorded` is the record of a replayed run, for designs whose arithmetic depends on it. With `predictor_learns`, backprop
    batches also train a predictor: that of the source `learner` or, if None, the accelerator's own. `variant` is what the cost
    functions of sources get for every batch (`AcceleratorWork.variation`).
    """

    batch: int
    counts: tuple[tuple[Plan, int], ...]
    predictor_learns: bool = True
    learner: str | None = None
    recorded: object = None
    variant: Hashable = None

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


def scheduled_run(schedule: Schedule, epochs: int, samples: int, batch: int, workload: Workload | None = None) -> Run:
    """Return the run of `epochs` over `samples` samples under `schedule`; a last, smaller batch counts as one.

    Schedules by layer patterns need the `workload` whose layers they choose from.
    """
    check_countable(schedule)
    for name, value in (("epochs", epochs), ("samples", samples), ("batch", batch)):
        if value < 1:
            raise OptionError(f"{name} is {value}; it must be 1 or more.")
    if workload is not None:
        schedule = schedule.resolve(workload_layout(workload))
    counts = _counts(schedule, epochs, -(-samples // batch))
    learners = [name for name in schedule.sources if source_work(name).learns]
    return Run(batch, counts, bool(learners), learners[0] if learners else None)


def check_countable(schedule: Schedule) -> None:
    """Raise for an adaptive schedule: its batches cannot be counted before they are trained."""
    if schedule.adapts:
        raise OptionError(
            "an adaptive schedule decides during the run, so it cannot be simulated before it. "
            "Train with it, then replay that run: adagp simulate --from-run RUN."
        )


def plan_key(plan: Plan) -> PlanKey:
    """Return what a batch's work depends on: all of its plan but the name of its phase."""
    return plan.default, plan.hold_rest, plan.frozen, tuple(sorted(plan.by_site.items()))


@lru_cache(maxsize=256)
def _counts(schedule: Schedule, epochs: int, batches: int) -> tuple[tuple[Plan, int], ...]:
    """Count the batches under each plan.

    Epochs of the same label whose first batch has the same phase are equal, so one of each is walked, and of its batches one
    period. Only the epoch in which a warm-up of batches ends differs from the others of its label.
    """
    alike: dict[tuple[str, Phase], list[int]] = {}
    for epoch in range(epochs):
        alike.setdefault((schedule.label(epoch), schedule.phase(Step(epoch, 0))), []).append(epoch)
    plans: dict[tuple[Phase, PlanKey], tuple[Plan, int]] = {}
    for members in alike.values():
        period = min(batches, schedule.repeats_after(members[0]) or batches)
        if period > MOST_WALKED:
            raise OptionError(
                f"an epoch of {batches:,} batches under this schedule repeats itself after {period:,} at the earliest; at "
                f"most {MOST_WALKED:,} can be counted. Give fewer samples, or larger batches."
            )
        whole, rest = divmod(batches, period)
        for batch in range(period):
            plan = schedule.plan(Step(members[0], batch))
            key = (plan.phase, plan_key(plan))
            times = len(members) * (whole + (batch < rest))
            plans[key] = (plan, plans.get(key, (plan, 0))[1] + times)
    return tuple(plans.values())


BATCH_KINDS = ("warmup", "bp", "gp", "guarded")
"""How the batches of an epoch are counted: `bp` has the warm-up in it, `guarded` are predictions that the guard rejected."""


def replayed_run(epochs: Iterable[Mapping[str, int]], batch: int, source: str, recorded: object = None) -> Run:
    """Return the run whose epochs had these batches by kind, of `batch` samples each.

    The kinds are `BATCH_KINDS`. Its GP batches took their gradients from `source`, none for a run by backprop alone.
    """
    totals: Counter[str] = Counter()
    for batches in epochs:
        totals.update(batches)
    predicted = totals["gp"] + totals["guarded"]
    plan = predicted_plan(source or BACKPROP)
    counts = ((WARM_UP, totals["warmup"]), (BACKPROP_ALL, totals["bp"] - totals["warmup"]), (plan, predicted))
    learns = source_work(plan.default).learns and totals["warmup"] + predicted > 0
    return Run(batch, counts, learns, plan.default if learns else None, recorded)
