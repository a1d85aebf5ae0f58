"""How far a run is between two epochs: a small file in its folder while it goes, for whoever looks on. No torch here."""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from adagp.errors import RunError
from adagp.program.run.documents import (
    ABSENT,
    AMOUNT,
    COUNT,
    FIGURE,
    TEXT,
    TableOf,
    parse_document,
    read_text,
    record_of,
)

PROGRESS = ".progress.json"
"""The file in a run's folder; it is deleted when the run ends or stops."""
EVERY_SECONDS = 1.0
"""How often it is written, at most."""
MOST_BYTES = 2**16


@dataclass(frozen=True)
class RunProgress:
    """Where a run is: `batch` of its `batches` is done, in epoch `epoch` (from 1), whose batches by kind are `counts`.

    `loss` and `score` are means over that epoch, None where not finite; `seconds_left` is what the rest will take if it goes
    on as it did since this process began.
    """

    batch: int
    batches: int
    epoch: int
    phase: str
    loss: float | None
    score: float | None
    counts: dict[str, int]
    seconds_left: float


_SHAPE = record_of(
    {
        **dict.fromkeys(("batch", "batches", "epoch"), COUNT),
        "phase": TEXT,
        **dict.fromkeys(("loss", "score"), FIGURE),
        "counts": TableOf(COUNT),
        "seconds_left": AMOUNT,
    },
    others=ABSENT,
)


class ProgressFile:
    """Writes the file now and then. A disk that does not take it holds no run up."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._written = -EVERY_SECONDS

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= EVERY_SECONDS

    def write(self, progress: RunProgress) -> None:
        """Write it, whole or not at all; readers never wait for the disk."""
        self._written = time.monotonic()
        temporary = self._path.with_name(f"{PROGRESS}.tmp")
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
            with temporary.open("x") as file:  # never through a link of a foreign folder
                file.write(json.dumps(asdict(progress)))
            temporary.replace(self._path)

    def delete(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_progress(folder: Path) -> RunProgress | None:
    """Return how far the run in `folder` is; None if it does not say, or not in a way that can be read."""
    path = folder / PROGRESS
    try:
        return RunProgress(**parse_document(read_text(path, MOST_BYTES), _SHAPE)) if path.is_file() else None
    except (RunError, OSError):
        return None
