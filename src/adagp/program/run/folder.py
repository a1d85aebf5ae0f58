"""A run's folder: configuration, versions, metrics, checkpoint and summary. Every file is written whole or not at all.

config.json       the options; `command` repeats the run
versions.json     what it ran on
metrics.jsonl     a JSON object per epoch; metrics.csv the same without the sites, sites.csv a row for each site and epoch
checkpoint.pt     all that is needed to continue exactly; replaced during the run
checkpoints/      in place of checkpoint.pt for a run in several processes; each process writes its part
model.pt          the trained weights alone: a plain state_dict
summary.json      the result, written last
.progress.json    its progress, while it runs
scalars.csv       figures during the run, and the folders tensorboard/, wandb/ and mlflow/, for the requested loggers


A folder becomes a run in one step. Its configuration is first written as `.starting.json`; then the files of a run that
is to be replaced are deleted, its config.json before all others; then the new files are written, the first checkpoint
among them; and last of all `.starting.json` is renamed to config.json. So a folder with config.json is a whole run at any
time, and one with `.starting.json` alone holds nothing worth keeping: the same command starts it again.
"""

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from adagp.core.files import TEMPORARY, append_to, delete_folder, sync_folder, write_atomically
from adagp.errors import RunError
from adagp.program.run.documents import (
    ABSENT,
    AMOUNT,
    ANYTHING,
    COUNT,
    FIGURE,
    SCALAR,
    TEXT,
    TEXT_OR_NOTHING,
    WHOLE,
    Fields,
    ListOf,
    Shape,
    TableOf,
    parse_document,
    read_document,
    read_text,
    record_of,
)

CONFIG = "config.json"
STARTING = ".starting.json"
"""The configuration of a run that is not complete yet."""
FILES = (
    CONFIG,  # deleted first: without it nothing is left of a run
    "versions.json",
    "metrics.jsonl",
    "metrics.csv",
    "sites.csv",
    "checkpoint.pt",
    "model.pt",
    "summary.json",
)
SCALARS = "scalars.csv"
LOGS = ("mlflow", "tensorboard", "wandb")
"""The file and the folders of loggers, if they are wanted."""
CHECKPOINTS = "checkpoints"
"""The folder of the checkpoints of a run in several processes."""

MEGABYTE = 2**20
SITES = TableOf(TableOf(FIGURE))
SHAPES: Mapping[str, tuple[Shape, int]] = {
    CONFIG: (
        Fields(
            {
                "data_dir": TEXT_OR_NOTHING,
                "command": TEXT,
                "plugins": ListOf(TEXT),
                "metrics": ListOf(TableOf(SCALAR)),
                "threads": WHOLE,
            },
            others=SCALAR,
        ),
        MEGABYTE,
    ),
    "versions.json": (TableOf(SCALAR), MEGABYTE),
    "summary.json": (
        Fields(
            {
                "batches": TableOf(COUNT),
                "seconds": AMOUNT,
                "seconds_by_phase": TableOf(AMOUNT),
                "samples_per_second": TableOf(FIGURE),
                "peak_memory": AMOUNT,
                "sites": SITES,
                "schedule_log": ListOf(ANYTHING),
                "test_loss": FIGURE,
                "train_loss": FIGURE,
            },
            others=ANYTHING,
        ),
        64 * MEGABYTE,
    ),
}
"""What the files of a run hold, and how many bytes they have at most."""
MOST_METRICS = 256 * MEGABYTE
ROW_PARTS: Mapping[str, Shape] = {
    "epoch": COUNT,
    "label": TEXT,
    "batches": TableOf(COUNT),
    "answers": TableOf(COUNT),
    "seconds": TableOf(AMOUNT),
    "sites": SITES,
}


class RunFolder:
    """The files of one run. `create` makes a new one, `claim` continues an old one, `open` only reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._epochs = -1
        self._written: dict[str, _WrittenTable] = {}

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any] | None = None, *, force: bool = False) -> "RunFolder":
        """Lock and empty a folder for a new run, which it becomes with `begin`.

        It must be empty, or with `force` hold a run.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            cls(path)._check_contents(force)  # before anything is written there
            hold(path)
            cls(path)._check_contents(force)  # another process may have been faster
            write_atomically(path / STARTING, (to_json(config or {}, indent=2) + "\n").encode())
            for name in (*FILES, SCALARS):
                (path / name).unlink(missing_ok=True)
            for name in (CHECKPOINTS, *LOGS):
                delete_folder(path / name)
        except OSError as error:
            release(path)
            raise RunError(f"cannot write the run folder '{path}': {error.strerror}.") from None
        except RunError:
            release(path)
            raise
        return cls(path)

    def _check_contents(self, force: bool) -> None:
        names = sorted(entry.name for entry in self.path.iterdir() if not is_leftover(entry.name))
        if not names or (STARTING in names and CONFIG not in names):  # nothing, or a start that was interrupted
            return
        if CONFIG not in names:
            raise RunError(f"'{self.path}' holds files that are not a run ({names[0]}, ...); give another --out.")
        if not force:
            raise RunError(
                f"'{self.path}' holds a run already. Give another --out, --resume {self.path} to continue it, "
                "or --force to delete it and start again."
            )

    def begin(self) -> None:
        """Turn the folder, which has all its first files, into a run."""
        (self.path / STARTING).replace(self.path / CONFIG)
        sync_folder(self.path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the run that `path` holds, for reading."""
        if not (path / CONFIG).is_file():
            if (path / STARTING).is_file():
                raise RunError(
                    f"the run in '{path}' was interrupted before it had begun: there is nothing to continue. "
                    "Give the command that starts it again."
                )
            raise RunError(f"'{path}' is not a run folder: it has no {CONFIG}.")
        return cls(path)

    @classmethod
    def claim(cls, path: Path) -> "RunFolder":
        """Return the run that `path` holds, locked for this process, to be continued."""
        folder = cls.open(path)
        hold(path)
        with suppress(OSError):  # a --force that was interrupted before it deleted anything
            (path / STARTING).unlink(missing_ok=True)
        return folder

    def release(self) -> None:
        """Release the folder for other processes."""
        release(self.path)

    @property
    def begun(self) -> bool:
        """Whether there is a run that can be continued."""
        return (self.path / CONFIG).is_file() and (self.checkpoint.is_file() or self.checkpoints.is_dir())

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint is, if there is one yet."""
        return self.path / "checkpoint.pt"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, where each process writes its part."""
        return self.path / CHECKPOINTS

    @property
    def weights(self) -> Path:
        """Where the trained weights are, once the run is finished."""
        return self.path / "model.pt"

    def read_json(self, name: str) -> Any:
        """Return the content of one JSON file of the run, checked against its shape."""
        shape, most = SHAPES.get(name, (ANYTHING, 64 * MEGABYTE))
        return read_document(self.path / name, shape, most)

    def write_json(self, name: str, content: Any) -> None:
        """Write one JSON file of the run."""
        write_atomically(self.path / name, (to_json(content, indent=2) + "\n").encode())

    def rows(self, required: Sequence[str] = ("epoch",)) -> list[dict[str, Any]]:
        """Return the metrics of the epochs so far, each with the `required` parts.

        A last line that was cut off by a crash is left out.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            lines = read_text(path, MOST_METRICS).splitlines()
        except RunError as error:
            raise RunError(f"cannot read '{path}': {error}") from None
        shape = Fields(ROW_PARTS, ANYTHING, tuple(required))
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(parse_document(line, shape))
            except RunError as error:
                if number == len(lines) and not _is_json(line):
                    break
                raise RunError(f"line {number} of '{path}' is damaged: {error}") from None
        return rows

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Write the metrics of all epochs so far, as JSON lines and as the two CSV tables.

        If only an epoch was added since the last call, its lines are appended: a run's files are written in linear time.
        """
        added = rows[-1:] if self._epochs == len(rows) - 1 else None
        self._epochs = -1  # unknown, if one of the files cannot be written
        for name, table in TABLES.items():
            self._write_table(name, table, rows, added)
        self._epochs = len(rows)

    def _write_table(
        self, name: str, table: "TableForm", rows: list[dict[str, Any]], added: list[dict[str, Any]] | None
    ) -> None:
        written = self._written.get(name)
        if added is not None and written is not None:
            columns, text = table(added, written.columns)
            content = text.encode()
            # A new column changes the first line, and so the whole file; so does a file that somebody else has changed.
            if columns == written.columns and append_to(self.path / name, content, written.size):
                self._written[name] = _WrittenTable(columns, written.size + len(content))
                return
        columns, text = table(rows, None)
        content = text.encode()
        write_atomically(self.path / name, content)
        self._written[name] = _WrittenTable(columns, len(content))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def is_leftover(name: str) -> bool:
    """Return whether a file is the lock, or a leftover of a killed process: its progress, or a file that it was writing."""
    return name in (LOCK, PROGRESS) or (name.startswith(".") and name.endswith(TEMPORARY))


def to_json(content: Any, indent: int | None = None) -> str:
    """Return `content` as JSON. A number that is not finite becomes null, as JSON has none."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def unused_path(base: Path) -> Path:
    """Return `base`, or the first of `base-2`, `base-3`, ... that does not exist."""
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def flat_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a CSV table of the rows with all their names as columns; tables inside a row become `outer.inner`."""
    return _csv_lines(rows, None)[1]


TableForm = Callable[[Sequence[Mapping[str, Any]], tuple[str, ...] | None], tuple[tuple[str, ...], str]]
"""Returns the columns and the text of rows of metrics: of a whole file, or of lines after a file with the given columns."""


@dataclass(frozen=True)
class _WrittenTable:
    """A table of metrics that this process has written: its columns, and its size in bytes."""

    columns: tuple[str, ...]
    size: int


def _csv_lines(rows: Iterable[Mapping[str, Any]], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    rows = [_flatten(row) for row in rows]
    columns = tuple(dict.fromkeys((*(known or ()), *(name for row in rows for name in row))))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if known is None:
        writer.writeheader()
    writer.writerows(rows)
    # A name may hold bytes that are not UTF-8.
    return columns, text.getvalue().encode("utf-8", "backslashreplace").decode()


def _json_lines(rows: Sequence[Mapping[str, Any]], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    return (), "".join(to_json(row) + "\n" for row in rows)


def _epoch_lines(rows: Sequence[Mapping[str, Any]], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    return _csv_lines(({name: value for name, value in row.items() if name != "sites"} for row in rows), known)


def _site_lines(rows: Sequence[Mapping[str, Any]], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    sites = ({"epoch": row["epoch"], "site": name, **site} for row in rows for name, site in row["sites"].items())
    return _csv_lines(sites, known)


TABLES: Mapping[str, TableForm] = {
    "metrics.jsonl": _json_lines,
    "metrics.csv": _epoch_lines,
    "sites.csv": _site_lines,
}
"""The files of metrics."""


LOCK = ".lock"
"""The file in a folder that is locked; it holds the id of the process that locked it last, and may be deleted."""
_KERNEL_LOCKS = Path("/proc/locks")
_locks: dict[Path, int] = {}
"""Open lock files of this process by folder."""


def hold(folder: Path) -> bool:
    """Lock `folder` until `release` or the end of this process; raise if another process has locked it.

    Return whether the lock was taken: not if this process has it already, and not on systems and file systems without such
    locks.
    """
    try:
        import fcntl
    except ImportError:
        return False
    path = folder.resolve()
    if path in _locks:
        return False
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # whatever a foreign folder has there
    try:
        file = os.open(path / LOCK, flags, 0o666)
    except OSError as error:
        raise RunError(f"cannot lock the folder '{folder}': {error.strerror}.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(file)
        os.close(file)
        raise RunError(f"another process{owner} is using '{folder}'; wait for it, or end it first.") from None
    except OSError:  # a file system that has no locks
        os.close(file)
        return False
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    _locks[path] = file
    return True


def release(folder: Path) -> None:
    """Release the lock on `folder`, if this process holds it."""
    file = _locks.pop(folder.resolve(), None)
    if file is not None:
        os.close(file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on `folder` for a while."""
    acquired = hold(folder)
    try:
        yield
    finally:
        if acquired:
            release(folder)


def is_held(folder: Path) -> bool:
    """Return whether a process has locked `folder`, without trying the lock, which could make another process fail."""
    try:
        number = (folder / LOCK).stat().st_ino
        locks = _KERNEL_LOCKS.read_text().splitlines()
    except OSError:
        return _owner_lives(folder)
    return any(
        words[1] == "FLOCK" and words[5].endswith(f":{number}") for line in locks if len(words := line.split()) > 5
    )


def _owner_lives(folder: Path) -> bool:
    """Return whether the process that last locked the folder still runs: `is_held` without the kernel's list of locks."""
    try:
        os.kill(int((folder / LOCK).read_text()), 0)
    except PermissionError:  # it is another user's
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _owner(file: int) -> str:
    """Return ` (process 123)`, if the lock file has it."""
    try:
        number = os.pread(file, 20, 0)
    except OSError:
        return ""
    return f" (process {number.decode()})" if number.isdigit() else ""


PROGRESS = ".progress.json"
"""The file in a run's folder; it is deleted when the run ends or stops."""
EVERY_SECONDS = 1.0
"""How often it is written, at most."""
MOST_BYTES = 2**16


@dataclass(frozen=True)
class RunProgress:
    """How far a run is: `batch` of its `batches` is done, in epoch `epoch` (from 1), whose batches by kind are `counts`.

    `loss` and `score` are means over that epoch, None if not finite. `seconds_left` is the estimate for the rest at the speed
    since this process began.
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
    """Writes the file at intervals. A failing disk does not stop the run."""

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
        """Delete the file."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_progress(folder: Path) -> RunProgress | None:
    """Return how far the run in `folder` is; None if there is no progress file that can be read."""
    path = folder / PROGRESS
    try:
        return RunProgress(**parse_document(read_text(path, MOST_BYTES), _SHAPE)) if path.is_file() else None
    except (RunError, OSError):
        return None
