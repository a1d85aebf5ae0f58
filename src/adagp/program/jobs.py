"""Jobs in processes of one thread each, a few at a time. A job leaves a file when it is done, so none is done twice.

The processes die with the one that started them, however that ended: on Linux the kernel sees to it. A job that fails or dies
is told in one sentence and holds no other job up. A job may tell on its way how much of it is done (`tell_share`).
"""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import Protocol

from adagp.core.memory import keep_freed_memory
from adagp.core.plugins import load_plugin, loaded_plugins
from adagp.errors import AdagpError

Stop = Callable[[], bool]
"""Tells whether somebody asked to stop."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PR_SET_PDEATHSIG = 1
"""The request of prctl(2) for a signal when the parent dies."""
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""The environment variable that torchrun sets for its processes."""
LOOK_SECONDS = 0.1
"""How often the waiting process looks whether somebody asked to stop."""
TELL_SECONDS = 0.5
"""How often a job tells how far it is, at most."""
MEMORY_SHARE = 0.8
"""The share of the free memory that jobs may take."""


@dataclass(frozen=True)
class Job:
    """Something to be done in a process: `work`, which can be pickled, leaves the file `result`.

    Asked to stop, it may end without, or raise `Stopped`; it is then begun again another time. What it prints goes to `log`.
    """

    name: str
    work: Callable[[Stop], object]
    result: Path
    log: Path

    @property
    def done(self) -> bool:
        """Whether its result is there."""
        return self.result.is_file()


@dataclass(frozen=True)
class JobFailure:
    """A job that ended without a result, and why, in a sentence."""

    name: str
    reason: str
    log: Path


class JobObserver(Protocol):
    """Is told of the jobs as they begin and end."""

    def on_start(self, job: Job) -> None:
        """Take note that a job begins."""

    def on_share(self, job: Job, share: float) -> None:
        """Take note of the share of a job that is done, from 0 to 1; not every job tells."""

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Take note that a job is over, or was done before."""


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """Somebody asked to stop; everything can be continued."""


class StopFlag:
    """Turns the first Ctrl-C (or termination request) into an answer to `stop()`, and the second into an interrupt.

    Not so under torchrun, which passes on what the terminal or the system has told all processes already.
    """

    def __init__(self) -> None:
        self._set = False

    def __call__(self) -> bool:
        """Tell whether somebody asked to stop."""
        return self._set

    def __enter__(self) -> "StopFlag":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._set and UNDER_TORCHRUN not in os.environ:
            raise KeyboardInterrupt
        self._set = True


def never() -> bool:
    """Tell that nobody asked to stop."""
    return False


def run_jobs(
    jobs: Sequence[Job], at_once: int, observer: JobObserver, stop: Stop = never, *, fresh: bool = False
) -> list[JobFailure]:
    """Do the jobs that are not done, `at_once` at a time; return those that failed.

    A process does one job after the other, or one only if they are to be `fresh`, so that its peak of memory is the job's
    own. On `stop()` the running jobs are asked to end, awaited, and `Stopped` is raised.
    """
    waiting = [job for job in jobs if not job.done]
    for job in jobs:
        if job not in waiting:
            observer.on_end(job, None)
    context = get_context("spawn")  # a fork would copy torch's threads half
    asked = context.Event()
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    failures: list[JobFailure] = []
    try:
        while busy or (waiting and not stop()):
            while waiting and len(busy) < at_once and not stop():
                worker = idle.pop() if idle else _Worker(context, asked)
                busy.append(worker)
                worker.begin(waiting.pop(0))
                observer.on_start(worker.job)
            connection.wait([worker.connection for worker in busy], LOOK_SECONDS)
            if stop():
                asked.set()
            for worker in [worker for worker in busy if worker.connection.poll()]:
                answer = worker.answer()
                if isinstance(answer, float):
                    observer.on_share(worker.job, answer)
                    continue
                busy.remove(worker)
                failure = worker.failure(answer)
                if fresh or not worker.process.is_alive():
                    worker.close()
                else:
                    idle.append(worker)
                if worker.job.done or not asked.is_set():
                    failures += [failure] if failure else []
                    observer.on_end(worker.job, failure)
        if stop():
            raise Stopped
    finally:
        for worker in [*busy, *idle]:
            worker.close()
    return failures


class _Worker:
    """A process that does jobs, seen from the one that started it."""

    job: Job

    def __init__(self, context: SpawnContext, asked: Event) -> None:
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, asked, os.getpid(), loaded_plugins()))
        with _interrupts_held_back():
            self.process.start()
        there.close()  # so that the death of the process is the end of the file here

    def begin(self, job: Job) -> None:
        """Give it a job."""
        self.job = job
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with suppress(BrokenPipeError):  # it is dead: `answer` will tell
            self.connection.send(job)

    def answer(self) -> float | str | None:
        """Return what it said: the share of its job that is done, or how the job ended: the reason of a failure, or None."""
        try:
            said: float | str | None = self.connection.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self.process.join()
            said = f"its process died (exit code {self.process.exitcode}; was there too little memory?)."
        return said

    def failure(self, reason: str | None) -> JobFailure | None:
        """Return how its job failed, which is over, if it did."""
        if self.job.done:
            return None
        return JobFailure(self.job.name, reason or "it ended without a result.", self.job.log)

    def close(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C wait; a process that is started meanwhile never sees it, not even before it could ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Shares:
    """Where the job that this process does tells how far it is; nowhere, in a process that does none."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._told = -TELL_SECONDS

    def tell(self, share: float) -> None:
        now = time.monotonic()
        if self.connection is not None and now - self._told >= TELL_SECONDS:
            self._told = now
            with suppress(BrokenPipeError):  # nobody listens any more
                self.connection.send(float(share))


_shares = _Shares()


def tell_share(share: float) -> None:
    """Tell whoever waits for the job that this process does how much of it is done, from 0 to 1. It may be called often."""
    _shares.tell(share)


def _serve(connection: Connection, asked: Event, parent: int, plugins: Sequence[str]) -> None:
    """Do the jobs that come, and answer each with the reason of its failure, or nothing."""
    _shares.connection = connection
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.environ.update(ONE_THREAD)  # before torch is imported, which the first job does
    keep_freed_memory()
    for name in plugins:
        load_plugin(name)
    while True:
        job: Job = connection.recv()
        with _printing_to(job.log):
            reason = _failure_of(job, asked.is_set)
        if not job.log.stat().st_size:
            job.log.unlink()
        connection.send(reason)


def _failure_of(job: Job, stop: Stop) -> str | None:
    try:
        job.work(stop)
    except Stopped:
        return None
    except AdagpError as error:
        sys.stderr.write(f"error: {error}\n")
        return str(error)
    except Exception as error:  # a job's mistake must not end the others
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Send what this process and its libraries print to a file."""
    before = [os.dup(number) for number in (1, 2)]
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in zip((1, 2), before, strict=True):
            os.dup2(kept, number)
            os.close(kept)


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent, of that process id, dies; at once, if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_await_death_of_parent, daemon=True).start()
    if os.getppid() != parent:  # it died before the request reached the kernel
        os._exit(1)


def _await_death_of_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def usable_cores() -> int:
    """Return the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def affordable_jobs(peak: int, free: int | None, cores: int) -> int:
    """Return how many jobs of `peak` bytes each may run at a time: a CPU core each, and memory for all."""
    return max(1, min(cores, cores if free is None else int(MEMORY_SHARE * free / peak)))
