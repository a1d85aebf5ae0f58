"""What all parallel loops share: one decision for all processes, one row of metrics, one checkpoint."""

import time
from collections import Counter
from collections.abc import Callable
from math import nan
from typing import Any

import torch

from adagp.distributed.processes import World
from adagp.engine.trainer import Trainer
from adagp.errors import RunError
from adagp.run.config import TrainConfig
from adagp.run.folder import RunFolder
from adagp.run.origin import refuse_other_origin
from adagp.sources.support.learned import LearnedSource
from adagp.tasks.base import Task
from adagp.train.checkpoint import load_checkpoint, save_checkpoint
from adagp.train.loop import Loop
from adagp.train.rates import Rate


class ParallelLoop(Loop):
    """A loop that every process runs. The first one keeps the folder; when to save and to stop is agreed on.

    `STOP` and `SAVE` are places in the tensor `requests`, which the processes add up: a request of one counts for all.
    """

    STOP, SAVE = 0, 1

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        rate: Rate,
        folder: RunFolder,
        *,
        config: TrainConfig,
        world: World,
        **options: Any,
    ) -> None:
        super().__init__(trainer, task, rate, folder, epochs=config.epochs, **options)
        self.config = config
        self.world = world
        self.learners = [source for source in trainer.sources.values() if isinstance(source, LearnedSource)]
        self.requests = torch.zeros(2)
        self._checked = 0

    def close(self) -> None:
        """Free what must not outlive the process group, when the run has ended in any way."""

    def make_requests(self) -> torch.Tensor:
        """Return this process's own requests, to be added up with those of the others before the next batch."""
        due = self.world.rank == 0 and super()._is_due()
        self.requests = torch.tensor([float(self._stop()), float(due)])
        return self.requests

    def _stops(self) -> bool:
        return bool(self.requests[self.STOP] > 0)

    def _is_due(self) -> bool:
        return bool(self.requests[self.SAVE] > 0)

    def save(self) -> None:
        """Gather each process's random state and sums of the epoch, and let the first one write the checkpoint."""
        self.collect()
        parts = self.world.gather({"random": torch.get_rng_state(), "meter": self.meter.state_dict()})
        if self.world.rank == 0:
            save_checkpoint(self.folder.checkpoint, self.state_dict() | {"parts": parts})
        self._saved = time.perf_counter()

    def collect(self) -> None:
        """Bring together in the first process what is spread over all: nothing, where each has everything."""

    def resume(self) -> None:
        """Go back to the checkpoint, which the first process reads for all."""
        state = self.world.first_does(lambda: load_checkpoint(self.folder.checkpoint))
        parts = state.get("parts", [])
        if len(parts) != self.world.size:
            raise RunError(
                f"the run in '{self.folder.path}' has {len(parts)} processes; it cannot continue with {self.world.size}."
            )
        refuse_other_origin(state.get("origin"), self.origin, self.folder.path)
        self.take_over(state)
        torch.set_rng_state(parts[self.world.rank]["random"])
        self.meter.load_state_dict(parts[self.world.rank]["meter"])

    def check_copies(self, copies: Callable[[], dict[str, str]]) -> None:
        """Compare the processes' copies, once `check_every` batches were trained since the last time."""
        done = self.trainer.done
        every = self.config.check_every
        if every and done // every > self._checked:
            self._checked = done // every
            self.world.compare(copies(), f"after {done} batches")

    def _reduce_meter(self, loss_scale: float) -> None:
        """Make the sums of the epoch those of all processes; each one's loss counts `loss_scale`."""
        self.world.phase = ""
        phases = sorted(self.meter.batches)
        sums = [self.meter.loss * loss_scale, self.meter.score, self.meter.answers]
        sums += [self.meter.answers_by_phase[phase] for phase in phases]
        numbers = torch.tensor(sums, dtype=torch.float64)
        self.world.add_up([numbers], "metrics")
        self.meter.loss, self.meter.score, answers, *by_phase = numbers.tolist()
        self.meter.answers = round(answers)
        for phase, number in zip(phases, by_phase, strict=True):
            self.meter.answers_by_phase[phase] = round(number)

    def _evaluate(self) -> dict[str, float]:
        """Evaluate in the first process; the others' figures are not used."""
        return self.world.wait_for_first(super()._evaluate, {"loss": nan, self.task.metric.name: nan})

    def _extra(self) -> dict[str, Any]:
        """Return the bytes that all processes sent, by phase and kind."""
        totals: Counter[tuple[str, str]] = Counter()
        for counts in self.world.gather(self.world.sent):
            totals.update(counts)
        self.world.sent.clear()
        sent: dict[str, dict[str, int]] = {}
        for (phase, kind), amount in sorted(totals.items()):
            sent.setdefault(phase or "epoch", {})[kind] = amount
        return {"sent_bytes": sent}


class ReadOnlyFolder(RunFolder):
    """The run folder as the other processes see it: they may read, and write nothing."""

    def begin(self) -> None:
        """Leave it to the first process."""

    def release(self) -> None:
        """Leave it to the first process."""

    def write_json(self, name: str, content: Any) -> None:
        """Leave it to the first process."""

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Leave it to the first process."""
