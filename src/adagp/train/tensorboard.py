"""Scalars for TensorBoard during a run. Steps are batches since the run began, for batches and epochs alike."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adagp.errors import OptionError
from adagp.plan import Phase
from adagp.run.folder import EVENTS
from adagp.train.loop import News

EVERY = 10
"""Batches between two scalars of the running epoch."""


def require_tensorboard() -> None:
    """Say what to install if scalars cannot be written."""
    if importlib.util.find_spec("tensorboard") is None:
        raise OptionError("--tensorboard needs tensorboard, which is not installed: pip install 'adagp[tensorboard]'.")


class TensorBoard:
    """An observer that writes scalars into the run folder `run`, of which `done` batches are trained already.

    `metric` is the name of the task's first metric. Events of later batches, left by a process that died after its last
    checkpoint, are marked as void: those batches are trained again.
    """

    def __init__(self, run: Path, done: int, metric: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._step, self._metric = done, metric
        self._writer: Any = SummaryWriter(run / EVENTS, purge_step=done + 1 if done else None)

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def on_batch(self, news: News) -> None:
        """Write the running epoch's means now and then."""
        self._step += 1
        if self._step % EVERY == 0:
            self._write("running/loss", news.loss)
            self._write(f"running/{self._metric}", news.score)
            self._write("running/predicted", float(news.phase is Phase.GP))

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Write all figures of a finished epoch, and let them be seen at once."""
        for name, value in _scalars(row):
            self._write(name, value)
        self._writer.flush()

    def _write(self, name: str, value: float) -> None:
        self._writer.add_scalar(name, value, self._step)


def _scalars(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an epoch by name: its own, seconds and batches by kind, figures by site."""
    for name, value in row.items():
        if isinstance(value, int | float):
            yield f"epoch/{name}", value
    for kind in ("seconds", "batches"):
        for name, value in row[kind].items():
            yield f"{kind}/{name}", value
    for site, figures in row["sites"].items():
        for name, value in figures.items():
            if value is not None:
                yield f"{name}/{site}", value
