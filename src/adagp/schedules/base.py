"""What every schedule can do: give a plan, count its phases, print itself as a table."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from adagp.core.plan import BACKPROP, Phase, Plan, Step
from adagp.errors import UsageError
from adagp.schedules.layout import Layout


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
    """What a schedule that adapts is told of a batch: figures are None where they were not measured.

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
    """A pure function from the step to a plan; one that `adapts` also of what it observed so far.

    The same step always gets the same plan, so a run can be resumed anywhere, every process of a distributed run agrees
    without talking, and a schedule can be counted before it is run. But for those that adapt, schedules are frozen dataclasses.
    """

    adapts: bool = False
    """Whether it wants to observe batches, with the quality of predictions measured in each BP batch."""
    needs_order: bool = False
    """Whether it must know the order in which layers run and what they cost, from a trial forward pass."""
    partial: bool = False
    """Whether some plan takes some sites from a source and others by backprop."""
    stops: bool = False
    """Whether the backward pass of some plan stops above the sites that come from a source."""

    @abstractmethod
    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""

    @abstractmethod
    def label(self, epoch: int) -> str:
        """Say in a word or two what `epoch` does, for example `warm-up` or `4:1`."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The schedule as `parse_schedule` reads it."""

    @property
    @abstractmethod
    def sources(self) -> frozenset[str]:
        """Every source that some plan of this schedule may name, backprop aside."""

    @property
    def log(self) -> Sequence[str]:
        """What a schedule that adapts has to say about the run so far."""
        return ()

    def resolve(self, layout: Layout) -> "Schedule":
        """Return the schedule for a model's layers; refuse what does not fit them."""
        return self

    def serves(self, site: str) -> bool:
        """Tell whether `site` may come from a source in some plan, once the schedule is resolved."""
        return True

    def phase(self, step: Step) -> Phase:
        """Return the phase of the batch at `step`."""
        return self.plan(step).phase

    def repeats_after(self, epoch: int) -> int | None:
        """Return a number of batches after which the plans of `epoch` repeat themselves; None if none is known."""
        return None

    def observe(self, report: Report) -> None:  # noqa: B027  # most schedules are fixed in advance
        """Take note of a batch that is over."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned from observing, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over what `state_dict` returned."""

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


def predicted_plan(source: str) -> Plan:
    """Return the plan of Phase GP: every site from `source`, no backward pass, the rest held."""
    if source == BACKPROP:
        return Plan(Phase.BP)
    return Plan(Phase.GP, default=source, hold_rest=True)
