"""A warm-up before any other schedule: its first epochs or batches by backprop."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from adagp.core.plan import WARM_UP, Phase, Plan, Step
from adagp.errors import OptionError
from adagp.schedules.base import Layout, Report, Schedule
from adagp.schedules.ladder import PAPER_EPOCHS

PAPER_WARMUP = 10


@dataclass(frozen=True)
class WarmUp(Schedule):
    """The first `epochs` epochs, or the first `batches` batches, by backprop, then what `schedule` says.

    After a warm-up in epochs `schedule` counts its epochs from the end of the warm-up. After one in batches, which is for
    runs of a few epochs, it counts from the beginning of the run: its own first batches lie in the warm-up.
    """

    schedule: Schedule
    _: KW_ONLY
    epochs: int = 0
    batches: int = 0
    batches_per_epoch: int = 0

    def __post_init__(self) -> None:
        for unit, length in (("epochs", self.epochs), ("batches", self.batches)):
            if length < 0:
                raise OptionError(f"warm-up is {length} {unit}; it must be 0 or more.")
        if self.epochs and self.batches:
            raise OptionError(f"warm-up is {self.epochs} epochs and {self.batches} batches; give one of them.")
        if self.batches and self.batches_per_epoch < 1:
            raise OptionError(f"batches_per_epoch is {self.batches_per_epoch}; a warm-up in batches needs 1 or more.")
        inner = self.schedule
        vars(self).update(adapts=inner.adapts, needs_order=inner.needs_order, partial=inner.partial, stops=inner.stops)

    def place(self, step: Step) -> Step | None:
        """Return the step at which `schedule` is asked for the batch at `step`; None during the warm-up."""
        if step.epoch < self.epochs or step.epoch * self.batches_per_epoch + step.batch < self.batches:
            return None
        return Step(step.epoch - self.epochs, step.batch)

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""
        place = self.place(step)
        return WARM_UP if place is None else self.schedule.plan(place)

    def phase(self, step: Step) -> Phase:
        """Return the phase of the batch at `step`."""
        place = self.place(step)
        return Phase.WARMUP if place is None else self.schedule.phase(place)

    def label(self, epoch: int) -> str:
        """Return `warm-up` for an epoch that is warm-up to its end."""
        place = self.place(Step(epoch, max(0, self.batches_per_epoch - 1)))
        return "warm-up" if place is None else self.schedule.label(place.epoch)

    def repeats_after(self, epoch: int) -> int | None:
        """Return that of the schedule; an epoch in which a warm-up of batches ends has none."""
        if self.batches:
            return None
        return 1 if epoch < self.epochs else self.schedule.repeats_after(epoch - self.epochs)

    @property
    def text(self) -> str:
        """The schedule as `parse_schedule` reads it; the warm-up is an option of its own."""
        return self.schedule.text

    @property
    def sources(self) -> frozenset[str]:
        """Those of the schedule."""
        return self.schedule.sources

    @property
    def log(self) -> Sequence[str]:
        """That of the schedule."""
        return self.schedule.log

    def resolve(self, layout: Layout) -> "WarmUp":
        """Return the warm-up before the schedule for a model's layers."""
        return replace(self, schedule=self.schedule.resolve(layout))

    def serves(self, site: str) -> bool:
        """Tell whether `site` may come from a source in some plan."""
        return self.schedule.serves(site)

    def observe(self, report: Report) -> None:
        """Pass it on: a schedule that adapts learns from the warm-up too, and its log has the steps of the run."""
        self.schedule.observe(report)

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule has learned."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.schedule.load_state_dict(state)


def scaled_warmup(epochs: int) -> int:
    """Return the paper's share of warm-up epochs in a run of `epochs`: a ninth, one at least."""
    return max(1, round(epochs * PAPER_WARMUP / PAPER_EPOCHS))
