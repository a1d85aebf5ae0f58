"""What all parallel loops share: common decisions to stop and save, one row of metrics, sharded checkpoints."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagp.core.plan import Step
from adagp.engine.trainer import Trainer
from adagp.program.distributed.checkpoint import Checkpoints, Loaded
from adagp.program.distributed.processes import World
from adagp.program.run.config import TrainConfig, check_same_run
from adagp.program.run.folder import RunFolder
from adagp.program.tasks.base import Task
from adagp.program.train.checkpoint import load_checkpoint
from adagp.program.train.loop import Loop, Rate
from adagp.sources.base import step_generator


class ParallelLoop(Loop):
    """A loop that every process runs. The first one writes the run folder; all save and stop together.

    `STOP` and `SAVE` are indices into the tensor `requests`, which the processes sum: a request of one counts for all.
    """

    STOP, SAVE = 0, 1
    OWN = ("meter", "random", "random_cuda")
    """The entries of `state_dict` that each process has of its own."""
    joint_loss = False
    """Whether every process has the loss of the whole batch; if not, each has its part, and these are summed."""

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
        self.requests = torch.zeros(2)
        self.checkpoints = Checkpoints(folder.checkpoints, world)
        self._checked = 0

    def close(self) -> None:
        """Free what must not outlive the process group, when the run has ended in any way."""

    def make_requests(self) -> torch.Tensor:
        """Return this process's own requests, to be summed with those of the others before the next batch."""
        due = self.world.rank == 0 and super()._is_due() and not self.checkpoints.busy
        self.requests = torch.tensor([float(self._stop()), float(due)])
        return self.requests

    def _stops(self) -> bool:
        return bool(self.requests[self.STOP] > 0)

    def _is_due(self) -> bool:
        return bool(self.requests[self.SAVE] > 0)

    def save(self) -> None:
        """Copy the state; every process writes its part in the background."""
        state = self.state_dict()
        process_state = {name: state.pop(name) for name in self.OWN}
        common, local = self.split_state(state)
        self.checkpoints.save(common, process_state | local)
        self._saved = time.perf_counter()

    def settle(self) -> None:
        """Wait until the last checkpoint is complete."""
        self.checkpoints.settle()

    def split_state(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the part of `state` that all processes have in common, and the part that only this one has."""
        return state, {}

    def merged_state(self, loaded: Loaded) -> dict[str, Any]:
        """Return the state that `split_state` has split, in any number of processes."""
        return loaded.common

    def shards(self) -> Mapping[str, Tensor]:
        """Return the tensors that are sharded over the processes, by their names in the checkpoint."""
        return {}

    @property
    def checkpoint_place(self) -> Path:
        """Where the checkpoint is."""
        return self.folder.checkpoints

    def resume(self) -> None:
        """Load the checkpoint, which another number of processes may have written."""
        loaded = self.checkpoints.load(self.shards()) or self._load_single_file()
        check_same_run(loaded.common.get("origin"), self.origin, self.folder.path)
        self.take_over(self.merged_state(loaded) | self._own_of(loaded))

    def _load_single_file(self) -> Loaded:
        """Return an older checkpoint, of one file: the first process reads it for all."""
        state = self.world.first_does(lambda: load_checkpoint(self.folder.checkpoint))
        return Loaded(state, state.pop("parts", []) or [{name: state[name] for name in self.OWN}])

    def _own_of(self, loaded: Loaded) -> dict[str, Any]:
        """Return the entries `OWN` for this process: its own ones, if there are as many processes as before."""
        parts, rank = loaded.own, self.world.rank
        if len(parts) == self.world.size:
            return {name: parts[rank][name] for name in self.OWN if name in parts[rank]}
        meter = joined_meter([part["meter"] for part in parts], joint_loss=self.joint_loss)
        if rank > 0:
            meter |= {"right": 0.0, "answers": 0, "answers_by_phase": dict.fromkeys(meter["answers_by_phase"], 0)}
            meter |= {} if self.joint_loss else {"loss": 0.0}
        if rank < len(parts):
            random = parts[rank]["random"]
        else:  # a new process: other samples, other dropout masks
            step = Step(loaded.common["trainer"]["epoch"], loaded.common["trainer"]["batch"])
            random = step_generator(self.config.seed + rank, step).get_state()
        return {"meter": meter, "random": random, "random_cuda": []}

    def check_copies(self, copies: Callable[[], dict[str, str]]) -> None:
        """Compare the digests of the processes' copies every `check_every` batches."""
        done = self.trainer.done
        every = self.config.check_every
        if every and done // every > self._checked:
            self._checked = done // every
            self.world.compare(copies(), f"after {done} batches")

    def _replicated(self) -> Iterator[Tensor]:
        """Yield what sources have learned that all processes must have alike."""
        return (tensor for source in self.trainer.sources.values() for tensor in source.replicated())

    def _reduce_meter(self, loss_scale: float) -> None:
        """Sum the epoch's metrics over all processes; each one's loss is multiplied by `loss_scale`."""
        self.world.phase = ""
        phases = sorted(self.meter.batches)
        sums = [self.meter.loss * loss_scale, self.meter.score, self.meter.answers]
        sums += [self.meter.answers_by_phase[phase] for phase in phases]
        numbers = torch.tensor(sums, dtype=torch.float64)
        self.world.all_reduce([numbers], "metrics")
        self.meter.loss, self.meter.score, answers, *by_phase = numbers.tolist()
        self.meter.answers = round(answers)
        for phase, number in zip(phases, by_phase, strict=True):
            self.meter.answers_by_phase[phase] = round(number)

    def _evaluate(self) -> dict[str, float]:
        """Evaluate in the first process; the metrics of the others are not used."""
        return self.world.wait_for_first(super()._evaluate, {"loss": nan, self.task.metric.name: nan})

    def _extra(self) -> dict[str, Any]:
        """Return the bytes that all processes sent, by phase and kind, and the mean seconds that a process waited."""
        totals: Counter[tuple[str, str]] = Counter()
        waited: Counter[str] = Counter()
        for counts, seconds in self.world.gather((self.world.sent, self.world.waited)):
            totals.update(counts)
            waited.update(seconds)
        self.world.sent.clear()
        self.world.waited.clear()
        sent: dict[str, dict[str, int]] = {}
        for (phase, kind), amount in sorted(totals.items()):
            sent.setdefault(phase or "epoch", {})[kind] = amount
        means = {phase or "epoch": seconds / self.world.size for phase, seconds in sorted(waited.items())}
        return {"sent_bytes": sent, "waiting_seconds": means}


def joined_meter(meters: Sequence[dict[str, Any]], *, joint_loss: bool) -> dict[str, Any]:
    """Return the epoch's metrics summed over all processes; batches and seconds are those of the first one."""
    losses = [meter["loss"] for meter in meters]
    answers: Counter[str] = Counter()
    for meter in meters:
        answers.update(meter["answers_by_phase"])
    return meters[0] | {
        "loss": losses[0] if joint_loss else sum(losses),
        "right": sum(meter["right"] for meter in meters),
        "answers": sum(meter["answers"] for meter in meters),
        "answers_by_phase": dict(answers),
    }


class ReadOnlyFolder(RunFolder):
    """The run folder in all processes but the first one: read only."""

    def begin(self) -> None:
        """Do nothing: the first process does it."""

    def release(self) -> None:
        """Do nothing: the first process does it."""

    def write_json(self, name: str, content: Any) -> None:
        """Do nothing: the first process does it."""

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Do nothing: the first process does it."""
