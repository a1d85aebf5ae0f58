"""The loggers of a run as its observer."""

from collections.abc import Sequence
from typing import Any

from adagp.core.plan import Phase
from adagp.program.loggers import Logger, scalars
from adagp.program.loggers.base import EVERY
from adagp.program.train.loop import News


class LoggedRun:
    """Tells loggers the running epoch's means every ten batches, and all figures of a finished epoch.

    `done` batches are trained already; `metric` is the name of the task's first metric.
    """

    def __init__(self, loggers: Sequence[Logger], done: int, metric: str) -> None:
        self._loggers, self._step, self._metric = loggers, done, metric
        self._waiting: dict[str, float] = {}

    def __enter__(self) -> "LoggedRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._pass_on()
        for logger in self._loggers:
            logger.on_end()

    def on_batch(self, news: News) -> None:
        """Take the running epoch's means now and then; they are written with the next batch or the end of the epoch."""
        self._pass_on()
        self._step += 1
        if self._step % EVERY == 0:
            predicted = float(news.phase is Phase.GP)
            self._waiting = {
                "running/loss": news.loss,
                f"running/{self._metric}": news.score,
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
