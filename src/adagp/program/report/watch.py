"""Runs that change while somebody looks: found again and read again at each look, but only where something changed."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adagp.errors import RunError
from adagp.program.run.folder import CONFIG, STARTING
from adagp.program.run.lock import is_held
from adagp.program.run.progress import PROGRESS, RunProgress, read_progress
from adagp.program.run.record import EXPECTED, RunRecord, is_run, name_runs, read_run

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each of several files: when it was changed, its size, which file it is; None where there is none."""
CLOCK_TICK = 1_000_000_000
"""Nanoseconds within which a file system may give two changes the same time."""
RECORD_FILES = (*EXPECTED, "summary.json")


@dataclass(frozen=True)
class WatchedRun:
    """A run as it is now; `running` if a process is at work in it, and then how far it says to be."""

    record: RunRecord
    running: bool
    progress: RunProgress | None


@dataclass
class _Known:
    """What was read of a run, and of which state of its files."""

    stamp: Stamp
    record: RunRecord
    progress_stamp: Stamp = ()
    progress: RunProgress | None = None


class Watch:
    """The runs below some folders. `look` reads what changed since the last time; `reads` counts the runs read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.is_dir():
                raise RunError(f"'{path}' cannot be watched: there is no such folder.")
        self.reads = 0
        self._paths = tuple(paths)
        self._known: dict[Path, _Known] = {}
        self._listed: dict[Path, tuple[int, tuple[Path, ...]]] = {}

    def look(self) -> list[WatchedRun]:
        """Return the runs that are there now, in the order of their names."""
        names = name_runs((path, folder) for path in self._paths for folder in self._runs_below(path))
        self._known = {path: known for path, known in self._known.items() if path in names}
        return [self._seen(path, name) for path, name in names.items()]

    def _seen(self, path: Path, name: str) -> WatchedRun:
        stamp, known = _stamp(path, RECORD_FILES), self._known.get(path)
        if known is None or known.stamp != stamp or known.record.name != name:
            self.reads += 1
            known = self._known[path] = _Known(stamp, read_run(path, name))
        running = not known.record.finished and is_held(path)
        moved = _stamp(path, (PROGRESS,))
        if moved != known.progress_stamp:
            known.progress_stamp, known.progress = moved, read_progress(path)
        return WatchedRun(known.record, running, known.progress if running else None)

    def _runs_below(self, root: Path) -> Iterator[Path]:
        """Yield the run folders at `root` or below; what lies inside a run, and behind links, is not looked at."""
        if is_run(root):
            if not _is_starting(root):
                yield root
            return
        for folder in self._folders(root):
            if is_run(folder) or not folder.is_symlink():
                yield from self._runs_below(folder)

    def _folders(self, folder: Path) -> tuple[Path, ...]:
        """Return the folders in a folder, listed again only if something came or went there."""
        try:
            changed = folder.stat().st_mtime_ns
            before = self._listed.get(folder)
            if before is not None and before[0] == changed:
                return before[1]
            with os.scandir(folder) as entries:
                found = tuple(sorted(Path(entry) for entry in entries if entry.is_dir()))
        except OSError:  # it vanished
            return ()
        fresh = (
            time.time_ns() - changed < CLOCK_TICK
        )  # something may yet come at what is the same time to the file system
        self._listed[folder] = (0 if fresh else changed, found)
        return found


def _is_starting(folder: Path) -> bool:
    """Tell whether a folder is about to become a run: its configuration is the last thing that comes."""
    return (folder / STARTING).is_file() and not (folder / CONFIG).is_file()


def _stamp(folder: Path, names: Sequence[str]) -> Stamp:
    return tuple(_file_stamp(folder / name) for name in names)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
