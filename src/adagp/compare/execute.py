"""Jobs as processes of their own, several at a time. Each leaves a file when it is done, so none is done twice."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import adagp
from adagp.errors import RunError

SHARE = 0.8
"""The share of the free memory that jobs may take."""
LAST_LINES = 5
"""Lines of a failed job that are shown."""


@dataclass(frozen=True)
class Job:
    """One process: the words after `python -m`, the file that it leaves when it is done, and where it may write to."""

    name: str
    words: Callable[[], Sequence[str]]
    result: Path
    log: Path

    @property
    def done(self) -> bool:
        """Whether its result is there."""
        return self.result.is_file()


@dataclass(frozen=True)
class Failure:
    """A job that ended without a result."""

    name: str
    code: int
    lines: tuple[str, ...]
    log: Path


class Watcher(Protocol):
    """Somebody who watches the jobs go by."""

    def on_start(self, job: Job) -> None:
        """Take note that a job begins."""

    def on_end(self, job: Job, failure: Failure | None) -> None:
        """Take note that a job is over, or was done before."""


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """Somebody asked to stop; everything can be continued."""


def execute(
    jobs: Sequence[Job], at_once: int, watcher: Watcher, stop: Callable[[], bool], lock: int | None = None
) -> list[Failure]:
    """Do the jobs that are not done, `at_once` at a time; return those that failed.

    On `stop()` the processes are asked to end, awaited, and `Stopped` is raised. They hold `lock`, an open file, while they
    live.
    """
    waiting = [job for job in jobs if not job.done]
    for job in jobs:
        if job not in waiting:
            watcher.on_end(job, None)
    running: dict[Job, subprocess.Popen[bytes]] = {}
    failures: list[Failure] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once and not stop():
                job = waiting.pop(0)
                running[job] = _start(job, lock)
                watcher.on_start(job)
            time.sleep(0.05)
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    if not stop():
                        failure = None if job.done else _failure(job, process.returncode)
                        failures += [failure] if failure else []
                        watcher.on_end(job, failure)
            if stop():
                _end(running.values(), signal.SIGTERM)
                raise Stopped
    finally:
        _end(running.values(), signal.SIGKILL)
    return failures


def _start(job: Job, lock: int | None) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.result.parent.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, (str(Path(adagp.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "120"}
    with job.log.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *job.words()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches us alone, and we tell them
            pass_fds=() if lock is None else (lock,),
        )


def _failure(job: Job, code: int) -> Failure:
    lines = [line for line in job.log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return Failure(job.name, code, tuple(lines[-LAST_LINES:]), job.log)


def _end(processes: "Iterable[subprocess.Popen[bytes]]", number: int) -> None:
    living = [process for process in processes if process.poll() is None]
    for process in living:
        process.send_signal(number)
    for process in living:
        process.wait()


@contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Hold the lock on a folder; refuse if somebody else does, be it a process left over from before."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield None
        return
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"another process is at work in '{path}'; wait for it, or end it first.") from None
        yield file.fileno()


def processors() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Return the bytes that new processes can have, None if the system does not say."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return None
    lines = (line.split() for line in table.read_text("utf-8").splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), None)


def at_once(peak: int, free: int | None, cores: int) -> int:
    """Return how many jobs of `peak` bytes each may run at a time: a processor each, and memory for all."""
    return max(1, min(cores, cores if free is None else int(SHARE * free / peak)))
