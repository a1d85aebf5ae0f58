"""The contract of a logger. Steps are batches since the run began, for batches and epochs alike. No torch here."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

EVERY = 10
"""Batches between two rows of the running epoch."""


class Logger(ABC):
    """Writes numbers by name and step; made with a folder and the batches `done` before, so that no step is there twice."""

    def on_batch(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures after batch `step`, counted from 1."""
        self.write(step, values)

    def on_epoch(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures of the epoch that ended with batch `step`."""
        self.write(step, values)

    def on_end(self) -> None:
        """Finish: the run has ended or continues in another process."""
        return

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name."""


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a row of an epoch's metrics by name: its own, seconds and batches by kind, figures by site."""
    return dict(_named(row))


def _named(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, int | float):
            yield f"epoch/{name}", value
    for kind in ("seconds", "batches"):
        for name, value in row.get(kind, {}).items():
            yield f"{kind}/{name}", value
    for site, figures in row.get("sites", {}).items():
        for name, value in figures.items():
            if value is not None:
                yield f"{name}/{site}", value
