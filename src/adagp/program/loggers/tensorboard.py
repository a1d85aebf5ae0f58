"""Scalars for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adagp.program.loggers.base import Logger


class TensorBoard(Logger):
    """Writes scalars into the folder `tensorboard`.

    Events of later batches, left by a process that died after its last checkpoint, are marked as void: those batches are
    trained again.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(folder / "tensorboard", purge_step=done + 1 if done else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def on_epoch(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of an epoch, and let them be seen at once."""
        self.write(step, values)
        self._writer.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._writer.close()
