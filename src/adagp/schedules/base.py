"""The contract of a schedule, and the facts about a model that it may use: layers, their order and their cost.

The cost model counts multiply-accumulates of sites. A layer's forward, input-gradient and weight-gradient passes cost the
same; the first layer has no input gradient. All other layers (normalisation, attention products) are left out.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from adagp.core.methods import Method
from adagp.core.plan import Phase, Plan, Step
from adagp.errors import OptionError, UsageError


@dataclass(frozen=True)
class Layer:
    """A layer with parameters. `kind` is conv, linear or other; `macs` are the multiply-accumulates of a forward pass.

    `other_parameters` names its parameters that belong to no site: the bias of a convolution, the weight of a normalisation.
    """

    name: str
    kind: str
    is_site: bool
    macs: int = 0
    other_parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A model's layers: in the order in which they run, with costs, if `measured`; else in the order of registration."""

    layers: tuple[Layer, ...]
    measured: bool = False

    @property
    def sites(self) -> tuple[Layer, ...]:
        """The layers that are sites."""
        return tuple(layer for layer in self.layers if layer.is_site)

    def savings(self) -> list[float]:
        """Return the share of a batch's work that is saved if the backward pass stops above the first c sites, for all c.

        Entry c is for the first c sites, from c = 0 (nothing is saved) to all sites (no backward pass).
        """
        macs = [layer.macs for layer in self.sites]
        total = 3 * sum(macs) - macs[0]
        below = list(accumulate(macs, initial=0))
        inputs = [*macs, 0]  # the lowest site that is trained needs no input gradient
        return [0.0] + [(2 * below[count] - macs[0] + inputs[count]) / total for count in range(1, len(macs) + 1)]

    def count_for(self, saving: float) -> int:
        """Return the smallest number of first sites that save the share `saving` of a batch's work; raise if none does."""
        savings = self.savings()
        if saving > savings[-1]:
            raise OptionError(
                f"the schedule is to save {saving:.0%} of a batch's work, but a batch without any backward pass "
                f"saves {savings[-1]:.0%}; choose that or less."
            )
        return next(count for count, saved in enumerate(savings) if count and saved >= saving)

    def others_below(self, count: int) -> frozenset[str]:
        """Return the names of parameters of no site whose layers run before site number `count` (from 0)."""
        sites = self.sites
        if count >= len(sites):
            return frozenset(name for layer in self.layers for name in layer.other_parameters)
        end = self.layers.index(sites[count])
        return frozenset(name for layer in self.layers[:end] for name in layer.other_parameters)


@dataclass(frozen=True)
class Row:
    """A run of epochs that the schedule treats alike: epochs `first` to `last`, both counted from 0 and included."""

    first: int
    last: int
    label: str
    batches: dict[Phase, int]

    @property
    def total(self) -> int:
        """Batches in the row, all phases together."""
        return sum(self.batches.values())


@dataclass(frozen=True)
class Report:
    """The report on a batch that an adaptive schedule gets. Figures that were not measured are None.

    `cosine` and `norm_ratio` compare the predictions for the sites trained by backprop with their true gradients, all sites
    as one vector. `loss` is before the update.
    """

    step: Step
    phase: Phase
    loss: float | None = None
    cosine: float | None = None
    norm_ratio: float | None = None
    guarded: bool = False


class Schedule(ABC):
    """A pure function from the step to a plan; one that `adapts` also depends on what it has observed so far.

    The same step always gets the same plan, so a run can be resumed anywhere, every process of a distributed run agrees without
    communication, and the batches of a schedule can be counted before the run. All schedules except adaptive ones are frozen
    dataclasses.
    """

    adapts: bool = False
    """Whether it observes batches, with the quality of predictions measured in each BP batch."""
    needs_order: bool = False
    """Whether it needs the order in which layers run and their cost, from a trial forward pass."""
    partial: bool = False
    """Whether some plan takes some sites from a source and others by backprop."""
    stops: bool = False
    """Whether the backward pass of some plan stops above the sites that come from a source."""

    @abstractmethod
    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""

    @abstractmethod
    def label(self, epoch: int) -> str:
        """Return a short label of what `epoch` does, for example `warm-up` or `4:1`."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The schedule as `parse_schedule` reads it."""

    @property
    def description(self) -> str:
        """The schedule in words, with its warm-up."""
        return self.text

    @property
    @abstractmethod
    def sources(self) -> frozenset[str]:
        """Every source that some plan of this schedule may name, backprop aside."""

    @property
    def log(self) -> Sequence[str]:
        """Messages of an adaptive schedule about the run so far."""
        return ()

    def resolve(self, layout: Layout) -> "Schedule":
        """Return the schedule for a model's layers; raise if it does not fit them."""
        return self

    def serves(self, site: str) -> bool:
        """Return whether `site` may come from a source in some plan, once the schedule is resolved."""
        return True

    def phase(self, step: Step) -> Phase:
        """Return the phase of the batch at `step`."""
        return self.plan(step).phase

    def repeats_after(self, epoch: int) -> int | None:
        """Return a number of batches after which the plans of `epoch` repeat themselves; None if none is known."""
        return None

    def observe(self, report: Report) -> None:  # noqa: B027  # most schedules are fixed in advance
        """Record a finished batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned from observing, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what `state_dict` returned."""

    def count(self, epochs: int, batches_per_epoch: int) -> Counter[Phase]:
        """Count the batches of each phase in a whole run."""
        totals: Counter[Phase] = Counter()
        for row in self.rows(epochs, batches_per_epoch):
            totals.update(row.batches)
        return totals

    def predicted_share(self, epochs: int, batches_per_epoch: int) -> float:
        """Return the share of GP batches among all batches of a run."""
        return self.count(epochs, batches_per_epoch)[Phase.GP] / (epochs * batches_per_epoch)

    def rows(self, epochs: int, batches_per_epoch: int) -> list[Row]:
        """Return the schedule as runs of epochs with the same label, each with its counts of batches."""
        if self.adapts:
            raise UsageError("an adaptive schedule decides during the run; its batches cannot be counted in advance.")
        rows = []
        for label, run in groupby(range(epochs), key=self.label):
            members = list(run)
            phases = Counter(self.phase(Step(epoch, batch)) for epoch in members for batch in range(batches_per_epoch))
            rows.append(Row(members[0], members[-1], label, dict(phases)))
        return rows

    def table(self, epochs: int, batches_per_epoch: int) -> str:
        """Return `rows` as readable text, epochs counted from 1 as people do."""
        lines = [f"{'epochs':>9}  {'ratio':<9}{'bp':>9}{'gp':>9}{'gp share':>10}"]
        rows = self.rows(epochs, batches_per_epoch)
        for row in rows:
            predicted = row.batches.get(Phase.GP, 0)
            span = f"{row.first + 1}-{row.last + 1}"
            lines.append(
                f"{span:>9}  {row.label:<9}{row.total - predicted:>9}{predicted:>9}{predicted / row.total:>10.3f}"
            )
        predicted = sum(row.batches.get(Phase.GP, 0) for row in rows)
        total = sum(row.total for row in rows)
        lines.append(f"{'all':>9}  {'':<9}{total - predicted:>9}{predicted:>9}{predicted / total:>10.3f}")
        return "\n".join(lines)


def check_method_schedule(method: Method, schedule: Schedule) -> None:
    """Raise if the schedule takes gradients from sources, but not from the method's own source."""
    if schedule.sources and method.source not in schedule.sources:
        raise OptionError(
            f"method '{method.name}' takes gradients from the source '{method.source}', but the schedule names "
            f"'{min(schedule.sources)}'. Give the schedule the same source, or choose the method that goes with it."
        )
