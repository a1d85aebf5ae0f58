"""Logging from a loop of the user's own: what a trainer did goes to any loggers."""

from collections.abc import Mapping, Sequence
from typing import Any

from adagp.program.loggers.base import EVERY, Logger


class TrainerLog:
    """Call `on_batch` with the result of each `trainer.step`, `on_epoch` with figures of your own, and `on_end` once.

    `trainer` is what `adagp.attach` returned; steps are the batches that it has done. `every` is how many batches lie
    between two rows: reading a loss waits for the device.
    """

    def __init__(self, trainer: Any, loggers: Sequence[Logger], every: int = EVERY) -> None:
        self._trainer, self._loggers, self._every = trainer, tuple(loggers), every

    def on_batch(self, result: Any, **figures: float) -> None:
        """Write loss, phase and `figures` of a batch, if it is time. `result` has `loss`, `phase` and `skipped`."""
        step = self._trainer.done
        if step % self._every or result.skipped:
            return
        values = {"batch/loss": float(result.loss), "batch/predicted": float(str(result.phase) == "gp"), **figures}
        for logger in self._loggers:
            logger.on_batch(step, values)

    def on_epoch(self, figures: Mapping[str, float]) -> None:
        """Write figures of an epoch, such as an evaluation's."""
        for logger in self._loggers:
            logger.on_epoch(self._trainer.done, {f"epoch/{name}": value for name, value in figures.items()})

    def on_end(self) -> None:
        """Finish all loggers."""
        for logger in self._loggers:
            logger.on_end()
