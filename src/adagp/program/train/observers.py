"""Observers of a training run: silent, writing its progress file, or passing figures on to loggers."""

import time
from collections.abc import Sequence
from math import isfinite
from typing import Any

from adagp.core.plan import Phase
from adagp.program.loggers import EVERY, Logger, scalars
from adagp.program.run.folder import ProgressFile, RunProgress
from adagp.program.train.loop import BatchStatus, Loop, Observer


class Silent:
    """An observer that does nothing."""

    def on_batch(self, status: BatchStatus) -> None:
        """Do nothing."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Do nothing."""


class ProgressObserver:
    """Passes everything on to another observer, and regularly writes the run's progress, out of `batches` batches."""

    def __init__(self, observer: Observer, loop: Loop, batches: int) -> None:
        self._observer, self._loop, self._batches = observer, loop, batches
        self._file = ProgressFile(loop.folder.path)
        self._begun, self._done_before = time.monotonic(), loop.trainer.done

    def __enter__(self) -> "ProgressObserver":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.delete()

    def on_batch(self, status: BatchStatus) -> None:
        """Write the file, if it is time."""
        self._observer.on_batch(status)
        if self._file.due:
            self._file.write(self._progress(status))

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Pass it on: the epoch's figures are in the folder already."""
        self._observer.on_epoch(row)

    def _progress(self, status: BatchStatus) -> RunProgress:
        done = self._loop.trainer.done
        pace = (time.monotonic() - self._begun) / max(1, done - self._done_before)
        return RunProgress(
            batch=done,
            batches=self._batches,
            epoch=status.epoch + 1,
            phase=str(status.phase),
            loss=status.loss if isfinite(status.loss) else None,
            score=status.score if isfinite(status.score) else None,
            counts=self._loop.meter.counts(),
            seconds_left=pace * max(0, self._batches - done),
        )


class LoggerObserver:
    """Passes the running epoch's means to loggers every ten batches, and all metrics of a finished epoch.

    `done` batches are trained already; `metric` is the name of the task's first metric.
    """

    def __init__(self, loggers: Sequence[Logger], done: int, metric: str) -> None:
        self._loggers, self._step, self._metric = loggers, done, metric
        self._waiting: dict[str, float] = {}

    def __enter__(self) -> "LoggerObserver":
        return self

    def __exit__(self, *_: object) -> None:
        self._pass_on()
        for logger in self._loggers:
            logger.on_end()

    def on_batch(self, status: BatchStatus) -> None:
        """Take the running epoch's means now and then; they are written with the next batch or the end of the epoch."""
        self._pass_on()
        self._step += 1
        if self._step % EVERY == 0:
            predicted = float(status.phase is Phase.GP)
            self._waiting = {
                "running/loss": status.loss,
                f"running/{self._metric}": status.score,
                "running/predicted": predicted,
            }

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Write all figures of a finished epoch, and those of its last batch: a step is written once."""
        for logger in self._loggers:
            logger.on_epoch(self._step, {**self._waiting, **scalars(row)})
        self._waiting = {}

    def _pass_on(self) -> None:
        if self._waiting:
            for logger in self._loggers:
                logger.on_batch(self._step, self._waiting)
            self._waiting = {}
