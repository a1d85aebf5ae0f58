"""A run tells how far it is while it goes, and leaves nothing of that behind."""

from pathlib import Path
from typing import Any

from adagp.program.run import TrainConfig
from adagp.program.run.folder import PROGRESS, RunProgress, read_progress
from adagp.program.train.loop import BatchStatus
from adagp.program.train.session import Session


class LookingOn:
    """An observer that reads the file as others would, at the end of each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[RunProgress | None] = []

    def on_batch(self, status: BatchStatus) -> None:
        """Do nothing."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Look."""
        self.seen.append(read_progress(self.folder))


def test_a_run_can_be_followed_while_it_goes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    session = Session(TrainConfig(method="bp", epochs=1, width=0.25, batch_size=256))
    looking = LookingOn(folder)
    assert session.run(session.start(folder), looking) is not None
    (seen,) = looking.seen
    assert seen is not None
    assert (seen.batches, seen.epoch, seen.phase) == (5, 1, "bp")  # whole batches of 1,437 samples
    assert 1 <= seen.batch <= 5
    assert seen.seconds_left >= 0
    assert not (folder / PROGRESS).exists()
    assert read_progress(folder) is None
