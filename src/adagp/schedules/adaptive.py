"""An adaptive schedule: GP phases grow while predictions are good, shrink when they are not, and stop when they harm.

After each BP batch it compares the predictions for that batch with the true gradients, and follows the loss:

    agreement good, loss not rising      the next GP phase is one batch longer
    neither good nor bad                 one batch shorter
    agreement bad, or the loss breaks    backprop for a while, then the shortest phase again

Its decisions are a function of what it has observed, so equal runs decide alike, and a resumed run continues exactly.
"""

from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, Step, predicted_plan
from adagp.errors import OptionError
from adagp.schedules.base import Layout, Report, Schedule

UNDERFIT = "accuracy drop: the predictor underfits"
OVERFIT = "accuracy drop: the predictor overfits"
SWITCHING = "no speed-up: phases switch too often"
"""The failure signatures that can be seen from here, as the log names them."""


@dataclass
class AdaptiveState:
    """The state of an adaptive schedule. Averages are None until something was measured."""

    length: int
    left_predicted: int
    left_true: int = 0
    pauses: int = 0
    paused: bool = False
    cosine: float | None = None
    norm_ratio: float | None = None
    recent_loss: float | None = None
    usual_loss: float | None = None
    epoch: int = 0
    epoch_predicted: int = 0
    epoch_batches: int = 0
    log: list[str] = field(default_factory=list)


@dataclass
class Adaptive(Schedule):
    """GP phases of `shortest` to `longest` batches, each followed by one BP batch that is measured.

    Agreement is measured by the running means of cosine and norm ratio. It is good from a cosine of `good` on, and bad below
    `bad` or if the norm ratio is above `loudest`. The loss rises if its recent mean is over 1 + `slack` times its longer one,
    and breaks at 1 + 4 `slack`. The first pause of backprop lasts `longest` batches, the second twice as many, and so on; when
    a phase grows again, the count of pauses restarts.
    """

    shortest: int = 1
    longest: int = 8
    source: str = "predicted"
    good: float = 0.2
    bad: float = 0.02
    loudest: float = 5.0
    slack: float = 0.05
    memory: AdaptiveState = field(init=False, compare=False, repr=False)

    adapts = True

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise OptionError(
                f"GP phases of {self.shortest} to {self.longest} batches are not possible: "
                "adaptive:LOW-HIGH needs 1 <= LOW <= HIGH."
            )
        if not self.bad <= self.good:
            raise OptionError(
                f"bad agreement is below {self.bad}, good agreement from {self.good} on; the first must not be "
                "above the second."
            )
        self.memory = AdaptiveState(self.shortest, self.shortest)

    @property
    def log(self) -> list[str]:
        """Messages about what went wrong, and when; epochs and batches are counted from 1."""
        return self.memory.log

    def resolve(self, layout: Layout) -> "Adaptive":
        """Return a copy that has observed nothing."""
        return replace(self)

    def plan(self, step: Step) -> Plan:
        """Return the plan of the coming batch; `step` must be its position."""
        return predicted_plan(self.source) if self.memory.left_predicted > 0 else BACKPROP_ALL

    def observe(self, report: Report) -> None:
        """Count the batch, update the averages if it was trained by backprop, and decide on the next phase."""
        memory = self.memory
        self._count(report)
        if report.phase is Phase.GP:
            memory.left_predicted -= 1
            if report.guarded:
                self._pause(report, UNDERFIT, "the guard rejected a prediction")
            elif report.loss is not None and not isfinite(report.loss):
                self._pause(report, OVERFIT, "the loss is not finite")
            elif memory.left_predicted <= 0:
                memory.left_true = 1
            return
        self._measure(report)
        if report.phase is Phase.BP:
            memory.left_true -= 1
            if memory.left_true <= 0:
                self._decide(report)

    def label(self, epoch: int) -> str:
        """Return `adaptive`."""
        return "adaptive"

    @property
    def text(self) -> str:
        """The schedule as `parse_schedule` reads it."""
        return f"adaptive:{self.shortest}-{self.longest}"

    @property
    def sources(self) -> frozenset[str]:
        """The one source of Phase GP."""
        return frozenset({self.source})

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, counters and log."""
        return asdict(self.memory)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.memory = AdaptiveState(**{**state, "log": list(state["log"])})

    def _count(self, report: Report) -> None:
        """Count GP batches by epoch, and report when there are too few of them to pay off."""
        memory = self.memory
        if report.step.epoch != memory.epoch:
            fewest = self.shortest / (self.shortest + 1) / 2
            if memory.epoch_predicted < fewest * memory.epoch_batches:
                memory.log.append(
                    f"epoch {memory.epoch + 1}: {SWITCHING}; {memory.epoch_predicted} of {memory.epoch_batches} batches "
                    "were predicted."
                )
            memory.epoch, memory.epoch_predicted, memory.epoch_batches = report.step.epoch, 0, 0
        memory.epoch_batches += report.phase is not Phase.WARMUP
        memory.epoch_predicted += report.phase is Phase.GP and not report.guarded

    def _measure(self, report: Report) -> None:
        memory = self.memory
        memory.cosine = _follow(memory.cosine, report.cosine, 0.2)
        memory.norm_ratio = _follow(memory.norm_ratio, report.norm_ratio, 0.2)
        memory.recent_loss = _follow(memory.recent_loss, report.loss, 0.3)
        memory.usual_loss = _follow(memory.usual_loss, report.loss, 0.05)

    def _decide(self, report: Report) -> None:
        memory = self.memory
        failure = self._failure(report.loss)
        if failure is not None:
            self._pause(report, *failure)
            return
        if not memory.paused:  # after a pause the shortest phase comes first
            self._adjust_length(better=(memory.cosine or 0.0) >= self.good and self._loss_rise() <= self.slack)
        memory.paused = False
        memory.left_predicted = memory.length

    def _failure(self, loss: float | None) -> tuple[str, str] | None:
        """Return the signature of a failure and the evidence for it; None if predictions can continue."""
        cosine, ratio, rise = self.memory.cosine or 0.0, self.memory.norm_ratio or 0.0, self._loss_rise()
        lost = loss is not None and not isfinite(loss)
        if lost or rise > 4 * self.slack:
            signature = OVERFIT if cosine >= self.good else UNDERFIT
            return signature, "the loss is not finite" if lost else f"the loss rose by {rise:.0%}"
        if cosine < self.bad or ratio > self.loudest:
            return UNDERFIT, f"cosine {cosine:.3f}, norm ratio {ratio:.2f} with the true gradients"
        return None

    def _loss_rise(self) -> float:
        recent, usual = self.memory.recent_loss, self.memory.usual_loss
        return recent / usual - 1 if recent is not None and usual else 0.0

    def _adjust_length(self, *, better: bool) -> None:
        memory = self.memory
        memory.pauses = 0 if better else memory.pauses
        memory.length = min(self.longest, max(self.shortest, memory.length + (1 if better else -1)))

    def _pause(self, report: Report, signature: str, why: str) -> None:
        memory = self.memory
        memory.pauses += 1
        memory.paused = True
        memory.length = self.shortest
        memory.left_predicted, memory.left_true = 0, self.longest * memory.pauses
        if not (memory.recent_loss is None or isfinite(memory.recent_loss)):
            memory.recent_loss = memory.usual_loss = None  # begin again
        memory.log.append(
            f"epoch {report.step.epoch + 1}, batch {report.step.batch + 1}: {signature}; {why}. "
            f"Backprop for {memory.left_true} batches."
        )


def _follow(average: float | None, value: float | None, share: float) -> float | None:
    if value is None:
        return average
    return value if average is None else average + share * (value - average)
