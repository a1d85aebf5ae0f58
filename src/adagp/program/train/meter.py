"""What happened in an epoch so far: losses, scores, batches and seconds by phase."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from adagp.core.plan import Phase


class EpochMeter:
    """Sums over the batches of one epoch. Its state is plain values, so a resumed epoch reports as if never stopped.

    `average` makes the task's first metric of the sum of scores and the number of answers (`Task.average`).
    """

    def __init__(self, average: Callable[[float, int], float]) -> None:
        self._average = average
        self.loss = 0.0
        self.score = 0.0
        self.answers = 0
        self.losses = 0
        self.batches: Counter[str] = Counter()
        self.answers_by_phase: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, phase: Phase, loss: float, score: float, answers: int, seconds: float, guarded: bool) -> None:
        """Add one batch. A guarded batch is counted on its own; its time belongs to its phase."""
        self.loss += loss
        self.losses += 1
        self.score += score
        self.answers += answers
        self.batches["guarded" if guarded else str(phase)] += 1
        self.answers_by_phase[str(phase)] += answers
        self.seconds[str(phase)] += seconds

    def add_skipped(self, phase: Phase, seconds: float) -> None:
        """Add a batch that was not run: it has a phase and a time, but neither loss nor answers."""
        self.batches[str(phase)] += 1
        self.seconds[str(phase)] += seconds

    def add_seconds(self, what: str, seconds: float) -> None:
        """Add time that belongs to no batch: `data` or `evaluation`."""
        self.seconds[what] += seconds

    @property
    def mean_loss(self) -> float:
        """The training loss averaged over the batches that were run."""
        return self.loss / max(1, self.losses)

    @property
    def mean_score(self) -> float:
        """The task's first metric over the answers to training batches, each before its update."""
        return self._average(self.score, self.answers)

    def counts(self) -> dict[str, int]:
        """Return the batches by kind. `bp` has the warm-up in it; `bp` + `gp` + `guarded` are all batches."""
        warmup, bp = self.batches[Phase.WARMUP], self.batches[Phase.BP]
        return {"warmup": warmup, "bp": warmup + bp, "gp": self.batches[Phase.GP], "guarded": self.batches["guarded"]}

    def state_dict(self) -> dict[str, Any]:
        """Return all sums as plain values."""
        return {
            "loss": self.loss,
            "losses": self.losses,
            "right": self.score,  # its name in checkpoints since the first one
            "answers": self.answers,
            "batches": dict(self.batches),
            "answers_by_phase": dict(self.answers_by_phase),
            "seconds": dict(self.seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.loss, self.losses = state["loss"], state["losses"]
        self.score, self.answers = state["right"], state["answers"]
        self.batches = Counter(state["batches"])
        self.answers_by_phase = Counter(state["answers_by_phase"])
        self.seconds = defaultdict(float, state["seconds"])
