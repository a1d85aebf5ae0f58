"""Jobs in processes of one thread each, a few at a time. A job leaves a file when it is done, so none is done twice.

The processes die with the one that started them, however that ended: on Linux the kernel sees to it. A job that fails or dies
is reported in one sentence and does not hold up the others. A running job may report how much of it is done (`report_share`).
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
from typing import Protocol

from adagp.core.files import reason
from adagp.core.memory import keep_freed_memory
from adagp.core.registry import load_plugin, loaded_plugins
from adagp.errors import AdagpError, RunError

Stop = Callable[[], bool]
"""Returns whether the user asked to stop."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PR_SET_PDEATHSIG = 1
"""The request of prctl(2) for a signal when the parent dies."""
POLL_SECONDS = 0.1
"""How often the waiting process checks for a request to stop."""
REPORT_SECONDS = 0.5
"""The least time between two reports of a job's progress."""
MEMORY_SHARE = 0.8
"""The share of the free memory that jobs may take."""


@dataclass(frozen=True)
class Job:
    """Work for a process: `work`, which can be pickled, writes the file `result`.

    After a request to stop it may end without a result, or raise `Stopped`; it then runs again another time. Its output goes to
    `log`.
    """

    name: str
    work: Callable[[Stop], object]
    result: Path
    log: Path

    @property
    def done(self) -> bool:
        """Whether its result exists."""
        return self.result.is_file()


@dataclass(frozen=True)
class JobFailure:
    """A job that ended without a result, and why, in a sentence."""

    name: str
    reason: str
    log: Path


class JobObserver(Protocol):
    """Called as jobs begin, progress and end."""

    def on_start(self, job: Job) -> None:
        """Called when a job begins."""

    def on_share(self, job: Job, share: float) -> None:
        """Called with the share of a job that is done, from 0 to 1; not every job reports it."""

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Called when a job is over, or was done before."""


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """The user asked to stop; everything can be resumed."""


def never() -> bool:
    """Return False: there is no way to stop."""
    return False


def run_jobs(
    jobs: Sequence[Job], at_once: int, observer: JobObserver, stop: Stop = never, *, fresh: bool = False
) -> list[JobFailure]:
    """Run the jobs that are not done, `at_once` at a time; return those that failed.

    A process runs one job after the other; with `fresh` only one, so that its peak memory is the job's own. On `stop()` the
    running jobs are stopped, waited for, and `Stopped` is raised.
    """
    waiting = []
    for job in jobs:
        if job.done:
            observer.on_end(job, None)
        else:
            waiting.append(job)
    with _WorkerPool(at_once, observer, reuse=not fresh) as pool:
        while pool.busy or (waiting and not stop()):
            while waiting and pool.has_room and not stop():
                pool.start(waiting.pop(0))
            pool.poll(stop)
        if stop():
            raise Stopped
    return pool.failures


class _WorkerPool:
    """At most `size` processes that run jobs; leaving its context kills them all."""

    def __init__(self, size: int, observer: JobObserver, *, reuse: bool) -> None:
        self._size, self._observer, self._reuse = size, observer, reuse
        self._context = get_context("spawn")  # fork copies only the calling thread, without torch's others
        try:
            self._stopping = self._context.Event()
        except OSError as error:  # semaphores are files there
            raise RunError(
                f"cannot start processes for jobs: {reason(error)}. The system needs a writable /dev/shm."
            ) from None
        self._idle: list[_Worker] = []
        self.busy: list[_Worker] = []
        self.failures: list[JobFailure] = []

    def __enter__(self) -> "_WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self.busy, *self._idle]:
            worker.close()

    @property
    def has_room(self) -> bool:
        return len(self.busy) < self._size

    def start(self, job: Job) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._stopping)
        self.busy.append(worker)
        worker.begin(job)
        self._observer.on_start(job)

    def poll(self, stop: Stop) -> None:
        """Wait a moment for messages of the workers, and pass on a request to stop."""
        connection.wait([worker.connection for worker in self.busy], POLL_SECONDS)
        if stop():
            self._stopping.set()
        for worker in [worker for worker in self.busy if worker.connection.poll()]:
            message = worker.receive()
            if isinstance(message, float):
                self._observer.on_share(worker.job, message)
            else:
                self._end(worker, message)

    def _end(self, worker: "_Worker", reason: str | None) -> None:
        """Release a worker after its job, and record a failure; a job that was stopped has not failed."""
        self.busy.remove(worker)
        failure = worker.failure(reason)
        if self._reuse and worker.process.is_alive():
            self._idle.append(worker)
        else:
            worker.close()
        if worker.job.done or not self._stopping.is_set():
            self.failures += [failure] if failure else []
            self._observer.on_end(worker.job, failure)


class _Worker:
    """A process that runs jobs, seen from the one that started it."""

    job: Job

    def __init__(self, context: SpawnContext, stopping: Event) -> None:
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_end, stopping, os.getpid(), loaded_plugins()))
        with _interrupts_held_back():
            self.process.start()
        child_end.close()  # then `self.connection` reads end-of-file when the process dies

    def begin(self, job: Job) -> None:
        """Send it a job."""
        self.job = job
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with suppress(BrokenPipeError):  # it is dead: `receive` notices
            self.connection.send(job)

    def receive(self) -> float | str | None:
        """Return its message: the share of its job that is done, or at the end the reason of a failure, or None."""
        try:
            message: float | str | None = self.connection.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self.process.join()
            message = f"its process died (exit code {self.process.exitcode}; was there too little memory?)."
        return message

    def failure(self, reason: str | None) -> JobFailure | None:
        """Return the failure of its job, which is over; None if it has its result."""
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
    """Block Ctrl-C; a process started meanwhile inherits that: it cannot be interrupted before it ignores the signal itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class _Shares:
    """Sends the progress of this process's job to the parent; does nothing in a process that runs no jobs."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._sent = -REPORT_SECONDS

    def report(self, share: float) -> None:
        now = time.monotonic()
        if self.connection is not None and now - self._sent >= REPORT_SECONDS:
            self._sent = now
            with suppress(BrokenPipeError):  # the parent has closed its end
                self.connection.send(float(share))


_shares = _Shares()


def report_share(share: float) -> None:
    """Report how much of this process's job is done, from 0 to 1. Cheap enough to call after every batch."""
    _shares.report(share)


def _serve(connection: Connection, stopping: Event, parent: int, plugins: Sequence[str]) -> None:
    """Run the jobs that arrive, and answer each with the reason of its failure, or None."""
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
            reason = _failure_of(job, stopping.is_set)
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
    """Redirect the output of this process and its libraries to a file."""
    before = [os.dup(number) for number in (1, 2)]
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, number)
            os.close(saved)


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent, whose process id is given, dies; at once, if it is dead already."""
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
