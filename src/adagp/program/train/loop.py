"""The training loop: epochs of batches, evaluation, learning-rate schedule, metrics and checkpoints.

for each epoch that is left:
    for each batch that is left of it:
        set its learning rate
        trainer.step(batch)                 # described in adagp.engine.trainer
        checkpoint, if it is time
        stop here, if requested             # with a checkpoint
    evaluate; set the next epoch's learning rate; write the epoch's metrics; checkpoint
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import cos, pi
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from adagp.core.plan import Phase, Step
from adagp.engine.batch import BatchResult
from adagp.engine.trainer import Trainer
from adagp.errors import RunError
from adagp.program.run.config import check_same_run
from adagp.program.run.folder import RunFolder
from adagp.program.tasks.base import Task, evaluated
from adagp.program.train.checkpoint import load_checkpoint, save_checkpoint
from adagp.sources.learned import plain_state


class Rate:
    """A learning rate that stays as it is; the others change it in `before_batch` or `after_epoch`."""

    def before_batch(self, done: int) -> None:
        """Set the rate of the batch that comes after `done` batches."""

    def after_epoch(self, loss: float) -> None:
        """Set the rate of the next epoch, given the mean training loss of this one: test data decide nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class EpochRate(Rate):
    """The rate of one of torch's schedulers, which changes by epochs; with `by_loss`, of one that depends on the loss."""

    def __init__(self, scheduler: LRScheduler, *, by_loss: bool = False) -> None:
        self.scheduler = scheduler
        self.by_loss = by_loss

    def after_epoch(self, loss: float) -> None:
        """Step the scheduler."""
        self.scheduler.step(*([loss] if self.by_loss else []))  # type: ignore[arg-type]  # the stubs have no loss

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        return plain_state(self.scheduler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.scheduler.load_state_dict(state)


class BatchRate(Rate):
    """The rate as a function of the batches done, out of `batches`: from `highest` along a curve to 0 at the end of the run.

    It has no state: a resumed run, and every process of a distributed one, finds the same rate at the same place.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, curve: str, highest: float, batches: int) -> None:
        self.optimizer = optimizer
        self.curve = CURVES[curve]
        self.highest = highest
        self.batches = batches

    def at(self, done: int) -> float:
        """Return the rate of the batch that comes after `done` batches."""
        return self.highest * self.curve(done / self.batches)

    def before_batch(self, done: int) -> None:
        """Give the optimizer the rate of that batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.at(done)


class WarmUpRate(Rate):
    """Another rate, times a factor that rises linearly from 1/`batches` to 1 in the first `batches` batches of the run.

    The factor is a function of the batches done. The other rate sees its own values only, never the reduced ones: a scheduler
    of torch's multiplies the rate that it finds in the optimizer.
    """

    def __init__(self, rate: Rate, optimizer: torch.optim.Optimizer, batches: int) -> None:
        self.rate = rate
        self.optimizer = optimizer
        self.batches = batches
        self._full = self._current()

    def before_batch(self, done: int) -> None:
        """Give the optimizer the other rate's value for that batch, times the factor."""
        self._set(self._full)
        self.rate.before_batch(done)
        self._full = self._current()
        if done + 1 < self.batches:
            self._set([full * (done + 1) / self.batches for full in self._full])

    def after_epoch(self, loss: float) -> None:
        """Pass the loss on to the other rate, which sees its own full values."""
        self._set(self._full)
        self.rate.after_epoch(loss)
        self._full = self._current()

    def state_dict(self) -> dict[str, Any]:
        """Return the other rate's state, and its present values."""
        return {"rate": self.rate.state_dict(), "full": list(self._full)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.rate.load_state_dict(state["rate"])
        self._full = list(state["full"])

    def _current(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def cosine_curve(share: float) -> float:
    """Return half a cosine: level at both ends."""
    return (1 + cos(pi * share)) / 2


def linear_curve(share: float) -> float:
    """Return what is left of the run."""
    return 1 - share


def exponential_curve(share: float) -> float:
    """Return a decay by the same factor in every batch, down to a hundredth."""
    return float(0.01**share)


CURVES = {"cosine": cosine_curve, "linear": linear_curve, "exponential": exponential_curve}
"""The share of the highest rate, given the share of the run that is done."""


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
        """Restore what `state_dict` returned."""
        self.loss, self.losses = state["loss"], state["losses"]
        self.score, self.answers = state["right"], state["answers"]
        self.batches = Counter(state["batches"])
        self.answers_by_phase = Counter(state["answers_by_phase"])
        self.seconds = defaultdict(float, state["seconds"])


@dataclass(frozen=True)
class BatchStatus:
    """Where the run is after a batch, and the means of loss and score in the epoch so far.

    Both are None while this process has seen none: at the beginning of a pipeline another one computes the loss.
    """

    epoch: int
    batch: int
    phase: Phase
    loss: float | None
    score: float | None


class Observer(Protocol):
    """Called as a run progresses."""

    def on_batch(self, status: BatchStatus) -> None:
        """Called after each batch."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Called with the metrics of a finished epoch."""


class Loop:
    """Trains `epochs` epochs of a task and keeps its run folder. Everything that changes is in `state_dict`."""

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        rate: Rate,
        folder: RunFolder,
        *,
        epochs: int,
        checkpoint_seconds: float = 60.0,
        origin: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.origin = dict(origin or {"options": {}, "data": {}})
        self.trainer = trainer
        self.task = task
        self.rate = rate
        self.folder = folder
        self.epochs = epochs
        self.checkpoint_seconds = checkpoint_seconds
        self.meter = EpochMeter(task.average)
        self.rows: list[dict[str, Any]] = []
        self.device = trainer.device
        self._stop: Callable[[], bool] = lambda: False
        self._saved = time.perf_counter()

    def run(self, observer: Observer, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until `stop()`; return whether the end was reached. Either way the folder is up to date."""
        self._stop = stop
        reached = self._train_epochs(observer)
        self.settle()
        return reached

    def _train_epochs(self, observer: Observer) -> bool:
        while self.trainer.at.epoch < self.epochs:
            epoch = self.trainer.at.epoch
            for _ in self._batches(epoch, observer):
                if self.trainer.at.epoch == epoch and (self._stops() or self._is_due()):
                    self.save()
                    if self._stops():
                        return False
            observer.on_epoch(self._end_epoch(epoch))
            self.save()
            if self._stops() and self.trainer.at.epoch < self.epochs:
                return False
        return True

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self.folder.checkpoint, self.state_dict())
        self._saved = time.perf_counter()

    def settle(self) -> None:
        """Wait until the last checkpoint is complete, if it is written in the background."""

    def resume(self) -> None:
        """Go back to the checkpoint. Metrics of epochs after it are dropped: they will be made again."""
        state = load_checkpoint(self.folder.checkpoint)
        check_same_run(state.get("origin"), self.origin, self.folder.path)
        self.take_over(state)

    @property
    def checkpoint_place(self) -> Path:
        """Where the checkpoint is."""
        return self.folder.checkpoint

    def take_over(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's state; raise if it does not fit."""
        try:
            self.load_state_dict(state)
            check_optimizer(self.trainer.optimizer)
        except Exception as error:  # whatever a foreign or damaged state leads to
            raise RunError(
                f"the checkpoint '{self.checkpoint_place}' does not fit this run; was the model changed since? "
                f"({type(error).__name__}: {' '.join(str(error).split())})"
            ) from error
        self.rows = self._rows_before(self.trainer.at.epoch)

    def _rows_before(self, epoch: int) -> list[dict[str, Any]]:
        """Return the metrics of all epochs before `epoch`; raise if some are missing."""
        name = self.task.metric.name
        figures = ("train_loss", f"train_{name}", "test_loss", f"test_{name}")
        rows = self.folder.rows(("epoch", "label", "batches", "answers", "seconds", "sites", *figures))
        earlier = [row for row in rows if row["epoch"] < epoch]
        if [row["epoch"] for row in earlier] != list(range(epoch)):
            raise RunError(
                f"'{self.folder.path / 'metrics.jsonl'}' does not have one line for each of the {epoch} epochs "
                f"before the checkpoint: the run is damaged."
            )
        for row in earlier:
            self._check_row(row)
        return earlier

    def _check_row(self, row: dict[str, Any]) -> None:
        """Raise on a row of metrics in which kinds of batches, or the seconds of a phase, are missing."""
        needed = [("batches", kind) for kind in self.meter.counts()] + [("seconds", phase) for phase in row["answers"]]
        for table, name in needed:
            if name not in row[table]:
                path = self.folder.path / "metrics.jsonl"
                raise RunError(f"line {row['epoch'] + 1} of '{path}' is damaged: '{table}.{name}' is missing.")

    def state_dict(self) -> dict[str, Any]:
        """Return model, optimizer, scheduler, trainer, the epoch's sums, the random state, and what the run was begun with."""
        return {
            "origin": self.origin,
            "model": self.trainer.packed_weights(),
            "optimizer": self.trainer.optimizer.state_dict(),
            "scheduler": self.rate.state_dict(),
            "trainer": self.trainer.state_dict(),
            "meter": self.meter.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.trainer.load_packed_weights(state["model"])
        self.trainer.optimizer.load_state_dict(state["optimizer"])
        self.rate.load_state_dict(state["scheduler"])
        self.trainer.load_state_dict(state["trainer"])
        self.meter.load_state_dict(state["meter"])
        torch.set_rng_state(state["random"])
        if state["random_cuda"]:
            torch.cuda.set_rng_state_all(state["random_cuda"])

    def _batches(self, epoch: int, observer: Observer) -> Iterator[None]:
        started = time.perf_counter()
        start = self.trainer.at.batch
        for inputs, targets in islice(self._read(epoch, start), self.trainer.epoch_length(epoch) - start):
            self.rate.before_batch(self.trainer.done)
            self._train(inputs, targets, started, observer)
            yield
            started = time.perf_counter()

    def _read(self, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        return self.task.batches(epoch, start)

    def _stops(self) -> bool:
        return self._stop()

    def _is_due(self) -> bool:
        return time.perf_counter() - self._saved > self.checkpoint_seconds

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        step = self.trainer.at
        inputs, targets = to_device(inputs, self.device), to_device(targets, self.device)
        start = self._clock()
        result = self._step(inputs, targets)
        seconds = self._clock() - start
        self.meter.add_seconds("data", start - before)
        if result.skipped:
            self.meter.add_skipped(result.phase, seconds)
        else:
            with torch.no_grad():
                score, answers = self.task.score(result.output, targets)
            self.meter.add(result.phase, result.loss.item(), float(score), answers, seconds, result.guarded)
        self._notify(observer, step, result.phase)

    def _step(self, inputs: Any, targets: Any) -> BatchResult:
        return self.trainer.step(inputs, targets, self.task.loss)

    def _notify(self, observer: Observer, step: Step, phase: Phase) -> None:
        means = (self.meter.mean_loss, self.meter.mean_score) if self.meter.answers else (None, None)
        observer.on_batch(BatchStatus(step.epoch, step.batch, phase, *means))

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        start = self._clock()
        test = self._evaluate()
        self.meter.add_seconds("evaluation", self._clock() - start)
        row = {
            "epoch": epoch,
            "label": self.trainer.schedule.label(epoch),
            "train_loss": self.meter.mean_loss,
            f"train_{self.task.metric.name}": self.meter.mean_score,
            **{f"test_{name}": value for name, value in test.items()},
            "lr": self.trainer.optimizer.param_groups[0]["lr"],
            "batches": self.meter.counts(),
            "answers": dict(self.meter.answers_by_phase),
            "seconds": dict(self.meter.seconds),
            **self._rejected(),
            **{name: value for hook in self.trainer.weight_hooks for name, value in hook.figures().items()},
            **self._model_figures(),
            **self._extra(),
            "sites": self.trainer.read_sites(),
        }
        self.rate.after_epoch(self.meter.mean_loss)
        self.meter = EpochMeter(self.task.average)
        self.rows.append(row)
        self.folder.write_rows(self.rows)
        return row

    def _rejected(self) -> dict[str, float]:
        """Return the share of the produced gradients that the guard rejected in this epoch, if it rejected any."""
        rejected, produced = self.trainer.rejections.total
        self.trainer.rejections.read()
        return {"rejected_share": rejected / produced} if rejected else {}

    @property
    def whole_model(self) -> nn.Module:
        """The model that is evaluated."""
        return self.trainer.model

    def _evaluate(self) -> dict[str, float]:
        with self.trainer.evaluation():
            return evaluated(self.task, self.whole_model)

    def _model_figures(self) -> dict[str, float]:
        """Return the figures that layers of the model measure of themselves: those with `read_figures`."""
        readers = (getattr(layer, "read_figures", None) for layer in self.trainer.model.modules())
        return {name: value for read in readers if callable(read) for name, value in read().items()}

    def _extra(self) -> dict[str, Any]:
        return {}

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise if a state does not fit the optimizer's parameters; otherwise only the first step would fail."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                raise ValueError(f"'{name}' of shape {tuple(value.shape)} for a parameter of {tuple(parameter.shape)}")


def to_device(value: Any, device: torch.device) -> Any:
    """Return tensors, and tensors in tuples, lists and dicts, on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple | list):
        return type(value)(to_device(item, device) for item in value)
    if isinstance(value, dict):
        return {name: to_device(item, device) for name, item in value.items()}
    return value
