"""The schedules of ADA-GP and of tensor re-mapping: a warm-up by backprop, then GP and BP batches in a ratio by epochs."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from adagp.core.plan import BACKPROP_ALL, LONG_RUN, WARM_UP, Phase, Plan, Step, predicted_plan
from adagp.errors import OptionError
from adagp.schedules.base import Layout, Report, Schedule


def check_ratio(predicted: int, true: int) -> None:
    """Raise on ratios that describe no alternation."""
    if predicted < 0 or true < 0 or predicted + true == 0:
        raise OptionError(
            f"ratio {predicted}:{true} is not allowed: K:M needs whole numbers of at least 0 that are not both 0, "
            "for example 4:1 (four GP batches, then one BP batch)."
        )


@dataclass(frozen=True)
class Rung:
    """`predicted` GP batches, then `true` BP batches, repeated for `epochs` epochs (None: to the end of the run)."""

    predicted: int
    true: int
    epochs: int | None = None

    def __post_init__(self) -> None:
        check_ratio(self.predicted, self.true)
        if self.epochs is not None and self.epochs < 1:
            raise OptionError(f"a rung lasts at least 1 epoch; got {self.epochs} for {self.ratio}.")

    @property
    def ratio(self) -> str:
        """The ratio as it is written: GP batches to BP batches."""
        return f"{self.predicted}:{self.true}"

    @property
    def text(self) -> str:
        """The rung as `parse_schedule` reads it."""
        return self.ratio if self.epochs is None else f"{self.ratio}x{self.epochs}"

    def is_predicted(self, index: int) -> bool:
        """Return whether the batch (or epoch) at `index` falls into Phase GP, which comes first."""
        return index % (self.predicted + self.true) < self.predicted


PAPER_RUNGS = (Rung(4, 1, 4), Rung(3, 1, 4), Rung(2, 1, 4), Rung(1, 1))


@dataclass(frozen=True)
class Ladder(Schedule):
    """Rungs with a ratio of GP to BP batches, each for some epochs, the last one to the end.

    The default is ADA-GP's after its warm-up of 10 epochs: 4:1, 3:1 and 2:1 for four epochs each, then 1:1. The alternation
    restarts in each epoch, so an epoch always begins with Phase GP.
    """

    rungs: tuple[Rung, ...] = PAPER_RUNGS
    source: str = "predicted"

    def __post_init__(self) -> None:
        if not self.rungs:
            raise OptionError("a ladder needs at least one rung, for example 4:1.")
        if any(rung.epochs is None for rung in self.rungs[:-1]):
            raise OptionError(
                "only the last rung of a ladder may be open-ended; give the others a number of epochs (4:1x4)."
            )

    @classmethod
    def scaled(cls, epochs: int, source: str = "predicted") -> "Ladder":
        """Return ADA-GP's ladder scaled from its 90 epochs to a run of `epochs`; each rung has at least one epoch."""
        factor = epochs / LONG_RUN
        rungs = tuple(
            rung if rung.epochs is None else Rung(rung.predicted, rung.true, max(1, round(rung.epochs * factor)))
            for rung in PAPER_RUNGS
        )
        return cls(rungs, source)

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""
        return predicted_plan(self.source) if self.rung(step.epoch).is_predicted(step.batch) else BACKPROP_ALL

    def rung(self, epoch: int) -> Rung:
        """Return the rung of `epoch`."""
        for rung in self.rungs:
            if rung.epochs is None or epoch < rung.epochs:
                return rung
            epoch -= rung.epochs
        return self.rungs[-1]

    def label(self, epoch: int) -> str:
        """Return the ratio of the epoch."""
        return self.rung(epoch).ratio

    def repeats_after(self, epoch: int) -> int:
        """Return the number of batches of one alternation."""
        rung = self.rung(epoch)
        return rung.predicted + rung.true

    @property
    def text(self) -> str:
        """The rungs as `parse_schedule` reads them."""
        return ",".join(rung.text for rung in self.rungs)

    @property
    def sources(self) -> frozenset[str]:
        """The one source of Phase GP."""
        return frozenset({self.source})


@dataclass(frozen=True)
class EpochAlternation(Schedule):
    """Whole epochs alternate: `ratio.predicted` epochs of GP, `ratio.true` epochs of BP (re-mapping paper)."""

    ratio: Rung = Rung(3, 1)
    source: str = "remapped"

    def __post_init__(self) -> None:
        if self.ratio.epochs is not None:
            raise OptionError(
                f"epochs:K:M alternates to the end of the run, so its ratio takes no number of epochs; got {self.ratio.text}."
            )

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`; all batches of an epoch have the same."""
        return predicted_plan(self.source) if self.ratio.is_predicted(step.epoch) else BACKPROP_ALL

    def label(self, epoch: int) -> str:
        """Return the phase of the epoch."""
        return f"all {self.phase(Step(epoch, 0))}"

    def repeats_after(self, epoch: int) -> int:
        """Return 1: the batches of an epoch are alike."""
        return 1

    @property
    def text(self) -> str:
        """The alternation as `parse_schedule` reads it."""
        return f"epochs:{self.ratio.ratio}"

    @property
    def sources(self) -> frozenset[str]:
        """The one source of GP epochs."""
        return frozenset({self.source})


@dataclass(frozen=True)
class BackpropOnly(Schedule):
    """Ordinary training: every batch by backprop."""

    def plan(self, step: Step) -> Plan:
        """Return the plan of ordinary training."""
        return BACKPROP_ALL

    def label(self, epoch: int) -> str:
        """Return `backprop`."""
        return "backprop"

    def repeats_after(self, epoch: int) -> int:
        """Return 1: the batches of an epoch are alike."""
        return 1

    @property
    def text(self) -> str:
        """The word for ordinary training."""
        return "bp"

    @property
    def sources(self) -> frozenset[str]:
        """No source but backprop."""
        return frozenset()


PAPER_WARMUP = 10


@dataclass(frozen=True)
class WarmUp(Schedule):
    """The first `epochs` epochs, or the first `batches` batches, by backprop, then `schedule`.

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

    def inner_step(self, step: Step) -> Step | None:
        """Return the step of `schedule` for the batch at `step`; None during the warm-up."""
        if step.epoch < self.epochs or step.epoch * self.batches_per_epoch + step.batch < self.batches:
            return None
        return Step(step.epoch - self.epochs, step.batch)

    def plan(self, step: Step) -> Plan:
        """Return the plan of the batch at `step`."""
        inner = self.inner_step(step)
        return WARM_UP if inner is None else self.schedule.plan(inner)

    def phase(self, step: Step) -> Phase:
        """Return the phase of the batch at `step`."""
        inner = self.inner_step(step)
        return Phase.WARMUP if inner is None else self.schedule.phase(inner)

    def label(self, epoch: int) -> str:
        """Return `warm-up` for an epoch that is warm-up to its end."""
        inner = self.inner_step(Step(epoch, max(0, self.batches_per_epoch - 1)))
        return "warm-up" if inner is None else self.schedule.label(inner.epoch)

    def repeats_after(self, epoch: int) -> int | None:
        """Return the number of the wrapped schedule, 1 in warm-up epochs; None after a warm-up in batches."""
        if self.batches:
            return None
        return 1 if epoch < self.epochs else self.schedule.repeats_after(epoch - self.epochs)

    @property
    def text(self) -> str:
        """The schedule as `parse_schedule` reads it; the warm-up is an option of its own."""
        return self.schedule.text

    @property
    def description(self) -> str:
        """The schedule in words, with its warm-up."""
        if self.batches:
            length = f"{self.batches} batch{'es' * (self.batches != 1)}"
        else:
            length = f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        return f"{self.schedule.description}, after a warm-up of {length}"

    @property
    def sources(self) -> frozenset[str]:
        """The sources of the wrapped schedule."""
        return self.schedule.sources

    @property
    def log(self) -> Sequence[str]:
        """The log of the wrapped schedule."""
        return self.schedule.log

    def resolve(self, layout: Layout) -> "WarmUp":
        """Return the warm-up with the wrapped schedule resolved for a model's layers."""
        return replace(self, schedule=self.schedule.resolve(layout))

    def serves(self, site: str) -> bool:
        """Return whether `site` may come from a source in some plan."""
        return self.schedule.serves(site)

    def observe(self, report: Report) -> None:
        """Pass the report on: an adaptive schedule learns from the warm-up too, and its log has the steps of the run."""
        self.schedule.observe(report)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped schedule."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.schedule.load_state_dict(state)


def scaled_warmup(epochs: int) -> int:
    """Return the warm-up epochs of a run of `epochs` in ADA-GP's proportion: a ninth, at least one."""
    return max(1, round(epochs * PAPER_WARMUP / LONG_RUN))
