"""A training run as a job: begun or continued in its folder, without anybody who looks on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.program.jobs import Stop, never, tell_share
from adagp.program.run.config import TrainConfig
from adagp.program.run.folder import RunFolder
from adagp.program.train.loop import News
from adagp.program.train.session import Session


class Silent:
    """An observer of a run that tells nobody."""

    def on_batch(self, news: News) -> None:
        """Say nothing."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Say nothing."""


class TellingShare(Silent):
    """An observer that tells whoever waits for the job how much of the run is done."""

    def __init__(self, session: Session) -> None:
        self._trainer = session.trainer
        config = session.config
        self._batches = config.batches or config.epochs * session.task.batches_per_epoch

    def on_batch(self, news: News) -> None:
        """Tell it."""
        tell_share(self._trainer.done / self._batches)


@dataclass(frozen=True)
class TrainingJob:
    """A run in a folder. Called, it trains in one CPU thread, from the checkpoint if there is one."""

    config: TrainConfig
    folder: Path
    data_dir: Path | None = None

    def __call__(self, stop: Stop = never) -> dict[str, Any] | None:
        """Return the summary of the run, None if it was stopped before the end: its checkpoint is then kept."""
        session = Session(self.config, data_dir=self.data_dir, threads=1 if self.config.device == "cpu" else None)
        begun = RunFolder(self.folder).begun
        loop = session.resume(self.folder) if begun else session.start(self.folder, force=True)
        return session.run(loop, TellingShare(session), stop)
