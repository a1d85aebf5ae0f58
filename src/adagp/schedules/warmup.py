"""A warm-up counted in batches, before any other schedule: for runs of less than a few epochs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adagp.plan import WARM_UP, Phase, Plan, Step
from adagp.schedules.base import Report, Schedule
from adagp.schedules.layout import Layout


@dataclass(frozen=True)
class WarmUp(Schedule):
    """The first `batches` batches of the run by backprop, then what `schedule` says of each batch.

    `schedule` counts from the beginning of the run: its own first epochs may lie in the warm-up.
    """

    schedule: Schedule
    batches: int
    batches_per_epoch: int

    @property
    def adapts(self) -> bool:  # type: ignore[override]  # a constant in other schedules
        """As the schedule."""
        return self.schedule.adapts

    @property
    def needs_order(self) -> bool:  # type: ignore[override]
        """As the schedule."""
        return self.schedule.needs_order

    @property
    def partial(self) -> bool:  # type: ignore[override]
        """As the schedule."""
        return self.schedule.partial

    @property
    def stops(self) -> bool:  # type: ignore[override]
        """As the schedule."""
        return self.schedule.stops

    @property
    def log(self) -> Sequence[str]:  # type: ignore[override]
        """As the schedule."""
        return self.schedule.log

    def covers(self, step: Step) -> bool:
        """Tell whether the batch at `step` belongs to the warm-up."""
        return step.epoch * self.batches_per_epoch + step.batch < self.batches

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""
        return WARM_UP if self.covers(step) else self.schedule.plan(step)

    def phase(self, step: Step) -> Phase:
        """Return the phase of the batch at `step`."""
        return Phase.WARMUP if self.covers(step) else self.schedule.phase(step)

    def label(self, epoch: int) -> str:
        """Return `warm-up` for an epoch that is warm-up to its end."""
        return "warm-up" if self.covers(Step(epoch, self.batches_per_epoch - 1)) else self.schedule.label(epoch)

    @property
    def text(self) -> str:
        """The schedule as `parse_schedule` reads it; the warm-up is an option of its own."""
        return self.schedule.text

    @property
    def sources(self) -> frozenset[str]:
        """Those of the schedule."""
        return self.schedule.sources

    def resolve(self, layout: Layout) -> "WarmUp":
        """Return the warm-up before the schedule for a model's layers."""
        return replace(self, schedule=self.schedule.resolve(layout))

    def serves(self, site: str) -> bool:
        """Tell whether `site` may come from a source in some plan."""
        return self.schedule.serves(site)

    def observe(self, report: Report) -> None:
        """Pass it on: a schedule that adapts learns from the warm-up too."""
        self.schedule.observe(report)

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule has learned."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.schedule.load_state_dict(state)
