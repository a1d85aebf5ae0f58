"""What all parallel loops share: one decision for all processes, one row of metrics, one checkpoint."""

import time
from collections import Counter
from collections.abc import Callable
from math import nan
from typing import Any

import torch

from adagp.distributed.processes import Group
from adagp.engine.trainer import Trainer
from adagp.errors import RunError
from adagp.run.config import TrainConfig
from adagp.run.folder import RunFolder
from adagp.sources.support.learned import LearnedSource
from adagp.tasks.base import Task
from adagp.train.checkpoint import load_checkpoint, save_checkpoint
from adagp.train.loop import Loop, Observer, RateScheduler


class ParallelLoop(Loop):
    """A loop that every process runs. The first one keeps the folder; when to save and to stop is agreed on.

    `STOP` and `SAVE` are places in the tensor `wishes`, which the processes add up: a wish of one is a wish of all.
    """

    STOP, SAVE = 0, 1

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        scheduler: RateScheduler | None,
        folder: RunFolder,
        *,
        config: TrainConfig,
        group: Group,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        super().__init__(trainer, task, scheduler, folder, epochs=config.epochs, checkpoint_seconds=checkpoint_seconds)
        self.config = config
        self.group = group
        self.learners = [source for source in trainer.sources.values() if isinstance(source, LearnedSource)]
        self.wishes = torch.zeros(2)
        self._asked: Callable[[], bool] = lambda: False
        self._saved = time.perf_counter()
        self._checked = 0

    def run(self, observer: Observer, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until some process wants to stop."""
        self._asked = stop
        return super().run(observer, lambda: bool(self.wishes[self.STOP] > 0))

    def make_wishes(self) -> torch.Tensor:
        """Return this process's own wishes, to be added up with those of the others before the next batch."""
        due = self.group.rank == 0 and time.perf_counter() - self._saved > self.checkpoint_seconds
        self.wishes = torch.tensor([float(self._asked()), float(due)])
        return self.wishes

    def _is_due(self, saved: float) -> bool:
        return bool(self.wishes[self.SAVE] > 0)

    def save(self) -> None:
        """Gather what the processes have of their own and let the first one write the checkpoint."""
        self.collect()
        parts = self.group.gather(self.own_state())
        if self.group.rank == 0:
            save_checkpoint(self.folder.checkpoint, self.state_dict() | {"parts": parts})
        self._saved = time.perf_counter()

    def collect(self) -> None:
        """Bring together in the first process what is spread over all: nothing, where each has everything."""

    def resume(self) -> None:
        """Go back to the checkpoint, which the first process reads for all."""
        state = self.group.first_does(lambda: load_checkpoint(self.folder.checkpoint))
        parts = state.get("parts", [])
        if len(parts) != self.group.size:
            raise RunError(
                f"the run in '{self.folder.path}' has {len(parts)} processes; it cannot go on with {self.group.size}."
            )
        self.load_state_dict(state)
        self.load_own_state(parts[self.group.rank])
        self.rows = [row for row in self.folder.rows() if row["epoch"] < self.trainer.at.epoch]

    def own_state(self) -> dict[str, Any]:
        """Return what this process has of its own: its random state and its sums of the epoch."""
        return {"random": torch.get_rng_state(), "meter": self.meter.state_dict()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take over what `own_state` returned."""
        torch.set_rng_state(state["random"])
        self.meter.load_state_dict(state["meter"])

    def check_copies(self, copies: Callable[[], dict[str, str]]) -> None:
        """Compare the processes' copies, once `check_every` batches were trained since the last time."""
        done = self.trainer.done
        every = self.config.check_every
        if every and done // every > self._checked:
            self._checked = done // every
            self.group.compare(copies(), f"after {done} batches")

    def _reduce_meter(self, loss_scale: float) -> None:
        """Make the sums of the epoch those of all processes; each one's loss counts `loss_scale`."""
        phases = sorted(self.meter.batches)
        sums = [self.meter.loss * loss_scale, self.meter.score, self.meter.answers]
        sums += [self.meter.answers_by_phase[phase] for phase in phases]
        numbers = torch.tensor(sums, dtype=torch.float64)
        self.group.add_up([numbers], "metrics")
        self.meter.loss, self.meter.score, answers, *by_phase = numbers.tolist()
        self.meter.answers = round(answers)
        for phase, number in zip(phases, by_phase, strict=True):
            self.meter.answers_by_phase[phase] = round(number)

    def _evaluate(self) -> dict[str, float]:
        """Evaluate in the first process; the others' figures go nowhere."""
        return super()._evaluate() if self.group.rank == 0 else {"loss": nan, self.task.metric.name: nan}

    def _extra(self) -> dict[str, Any]:
        """Return the bytes that all processes sent, by phase and kind."""
        totals: Counter[tuple[str, str]] = Counter()
        for counts in self.group.gather(self.group.sent):
            totals.update(counts)
        self.group.sent.clear()
        sent: dict[str, dict[str, int]] = {}
        for (phase, kind), amount in sorted(totals.items()):
            sent.setdefault(phase or "epoch", {})[kind] = amount
        return {"sent_bytes": sent}


class SilentFolder(RunFolder):
    """The run folder as the other processes see it: they may read, and write nothing."""

    def write_json(self, name: str, content: Any) -> None:
        """Leave it to the first process."""

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Leave it to the first process."""
