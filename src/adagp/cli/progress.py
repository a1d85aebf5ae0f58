"""Progress of a run, or of several jobs, on standard error: bars in a terminal, lines elsewhere; Ctrl-C; the final table."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from adagp.cli.terminal import Pulse, Terminal, clock_time, text_column, time_left
from adagp.core.escape import escaped
from adagp.program.jobs import Job, JobFailure
from adagp.program.loggers import LoggerObserver, build_loggers
from adagp.program.run.metrics import ACCURACY, SHARE, Metric
from adagp.program.train.loop import BatchStatus, Loop, Observer
from adagp.program.train.session import Session, resume_command

STOPPED = 130
"""Exit code of a run that Ctrl-C stopped, as in shells."""
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""The environment variable that torchrun sets for its processes."""


class StopFlag:
    """A flag that the first Ctrl-C (or SIGTERM) inside the context sets; the second one raises KeyboardInterrupt.

    Under torchrun the second is ignored: torchrun forwards signals that the processes have received already.
    """

    def __init__(self) -> None:
        self._set = False

    def __call__(self) -> bool:
        """Return whether the user asked to stop."""
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


def run_with_progress(session: Session, loop: Loop, *, log: Sequence[str] = ()) -> dict[str, Any]:
    """Run to the end and return the summary. Ctrl-C stops after the current batch, with a checkpoint; a second one at once."""
    console = Terminal(stderr=True, quiet=session.quiet)
    if session.note:
        console.say(session.note)
    if loop.trainer.done == _total_batches(session):
        console.say("This run is finished: there is nothing left to train.")
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        observers: list[Observer] = [stack.enter_context(LiveProgress(console, session, loop))]
        if log and not session.quiet:
            done = loop.trainer.done
            loggers = build_loggers(log, loop.folder.path, done)
            observers.append(stack.enter_context(LoggerObserver(loggers, done, session.task.metric.name)))
        summary = session.run(loop, Observers(observers), stop)
    if summary is None:
        command = escaped(resume_command(session.config, loop.folder.path))
        console.print(f"Stopped. Continue with: {command}", highlight=False, soft_wrap=True)
        sys.exit(STOPPED)
    if session.quiet:
        return summary
    console.print(summary_table(summary))
    console.say(result_line(summary, session.task.all_metrics))
    if fault := divergence(loop.rows):
        console.print(
            f"Training diverged: {fault}. Lower --lr, which was {session.config.lr:g}.",
            soft_wrap=not console.is_terminal,
        )
    console.print(f"Run folder: {escaped(loop.folder.path)}", highlight=False, soft_wrap=True)
    command = shlex.join(["adagp", "report", str(loop.folder.path)])
    console.print(f"Next: {escaped(command)}", highlight=False, soft_wrap=True)
    return summary


def _total_batches(session: Session) -> int:
    return session.config.batches or session.config.epochs * session.task.batches_per_epoch


DIVERGED = 1e6
"""A run with a training loss above this, or that is not a number, has diverged."""


def divergence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a message with the epoch in which the training loss diverged; '' if it did not."""
    for row in rows:
        loss = row["train_loss"]
        if loss is None or not loss <= DIVERGED:
            reached = "is not a number" if loss is None or loss != loss else f"is {loss:.3g}"
            return f"the training loss {reached} in epoch {row['epoch'] + 1}"
    return ""


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def on_batch(self, status: BatchStatus) -> None:
        """Call all of them."""
        for observer in self._observers:
            observer.on_batch(status)

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Call all of them."""
        for observer in self._observers:
            observer.on_epoch(row)


ROOMY = 110
"""Width of a terminal, in characters, from which the bar also shows the speed."""


class LiveProgress:
    """A bar over the batches of the run with epoch, phase, loss and metric, and a line for each epoch.

    Without a terminal there are only the lines, and in a long epoch a status line twice a minute.
    """

    def __init__(
        self, console: Terminal, session: Session, loop: Loop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._epochs = session.config.epochs
        self._metric = session.task.metric
        self._per_epoch = session.task.batches_per_epoch
        self._batches = _total_batches(session)
        self._before = loop.trainer.done
        self._clock = clock
        self._pulse = Pulse(clock)
        speed = [text_column("{task.fields[speed]} batches/s")] if console.width >= ROOMY else []
        self._bar = Progress(
            text_column("epoch {task.fields[epoch]}"),
            text_column("{task.fields[phase]:<6}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            *speed,
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            text_column("{task.fields[means]}"),
            console=console,
            disable=session.quiet or not console.is_terminal,
            transient=True,
            expand=True,
        )

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        self._began = self._clock()
        total = self._batches
        start: dict[str, Any] = {"epoch": f"1/{self._epochs}", "phase": "", "speed": "-", "means": ""}
        self._task: TaskID = self._bar.add_task("", total=total, completed=self._before, **start)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_batch(self, status: BatchStatus) -> None:
        """Move the bar, or print a status line."""
        if self._bar.disable:
            if self._pulse.is_due:
                self._say(self._status_line(status))
            return
        speed = self._bar.tasks[self._task].speed
        self._bar.update(
            self._task,
            completed=self._done(status),
            epoch=f"{status.epoch + 1}/{self._epochs}",
            phase=str(status.phase),
            speed="-" if speed is None else f"{speed:.1f}",
            means=self._means(status),
        )

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Print a permanent line."""
        self._say(
            f"epoch {row['epoch'] + 1:>3} {row['label']:<8} train loss {row['train_loss']:.4f}  "
            f"test loss {row['test_loss']:.4f}  test {self._metric.words} "
            f"{_figure(row[f'test_{self._metric.name}'], self._metric)}"
        )

    def _status_line(self, status: BatchStatus) -> str:
        done = self._done(status)
        rest = time_left(self._clock() - self._began, done - self._before, self._batches - self._before)
        left = "" if rest is None else f", about {clock_time(rest)} left"
        parts = (f"epoch {status.epoch + 1}/{self._epochs}", f"batch {done}/{self._batches}", self._means(status))
        return f"{', '.join(part for part in parts if part)}{left}"

    def _means(self, status: BatchStatus) -> str:
        if status.loss is None:
            return ""
        return f"loss {status.loss:.4f} {self._metric.words} {_figure(status.score, self._metric, 3)}"

    def _say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, soft_wrap=True)
        self._pulse.beat()

    def _done(self, status: BatchStatus) -> int:
        return status.epoch * self._per_epoch + status.batch + 1


def summary_table(summary: dict[str, Any]) -> Table:
    """Return a table of the batches, seconds and samples per second of a run by phase."""
    table = Table(title=f"{summary['model']} on {summary['dataset']}, method {summary['method']}")
    for name in ("phase", "batches", "seconds", "samples/s"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    counts = summary["batches"]
    after_warmup, gp = counts["bp"] - counts["warmup"], counts["gp"] + counts["guarded"]
    for phase, count in (("warmup", counts["warmup"]), ("bp", after_warmup), ("gp", gp)):
        if count:
            seconds = summary["seconds_by_phase"].get(phase, 0.0)
            table.add_row(phase, str(count), f"{seconds:.2f}", f"{summary['samples_per_second'].get(phase, 0):.0f}")
    if counts["guarded"]:
        table.add_row("of gp, rejected by the guard", str(counts["guarded"]), "", "")
    return table


def result_line(summary: dict[str, Any], metrics: Sequence[Metric]) -> str:
    """Return a line with the result of a run in the metrics of its task, and its seconds."""
    values = [f"test {each.words} {_figure(summary.get(f'test_{each.name}'), each)}" for each in metrics]
    loss = f"test loss {_figure(summary['test_loss'])}"
    return f"{', '.join([*values, loss])}; {summary['seconds']:.1f} s with data and evaluation."


def _figure(value: float | None, metric: Metric = ACCURACY, digits: int = 4) -> str:
    """Return a loss or a share with `digits` digits, or the text of another metric's value; None: it was not finite."""
    if value is None:
        return "not finite"
    return f"{value:.{digits}f}" if metric.unit == SHARE else metric.text(value)


class JobProgress:
    """One bar for each stage of the work, with the remaining time of the stage, and below it the running jobs.

    Without a terminal there are a line for each finished job, and a status line twice a minute. `at_first` is shown before the
    first stage.
    """

    def __init__(self, console: Terminal, at_first: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pulse = Pulse(clock)
        self._running: dict[str, float | None] = {}
        self._task: TaskID | None = None
        self._bar = _Bars(console, at_first)

    def __enter__(self) -> "JobProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.say(text)
        self._pulse.beat()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Add a bar, for `total` steps of which some are `done` already."""
        self._what, self._total, self._done, self._before = what, total, done, done
        self._began = self._clock()
        self._running.clear()
        self._task = self._bar.add_task(what, total=total, completed=done, count="", left="")
        self._show()

    def advance(self) -> None:
        """Move the bar."""
        self._done += 1
        self._show()

    def on_start(self, job: Job) -> None:
        """Show the job below the bar."""
        self._running[escaped(job.name)] = None
        self._show()

    def on_share(self, job: Job, share: float) -> None:
        """Move the bar by a part of a step."""
        self._running[escaped(job.name)] = share
        self._show()

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Move the bar; report a failure. A job that was finished earlier takes no time and is not reported."""
        began_here = escaped(job.name) in self._running
        self._running.pop(escaped(job.name), None)
        self._before += not began_here
        self.advance()
        if failure is not None:
            self.say(f"{failure.name} failed: {failure.reason} Its output is in {failure.log}.")
        elif self._bar.disable and began_here:
            self.say(f"{self._what} {self._done}/{self._total} {job.name}")

    def _show(self) -> None:
        assert self._task is not None
        elapsed, done = self._clock() - self._began, self._done + sum(filter(None, self._running.values()))
        rest = time_left(elapsed, done - self._before, self._total - self._before)
        left = "" if rest is None else f"{clock_time(rest)} left"
        jobs = "; ".join(name if share is None else f"{name} {share:.0%}" for name, share in self._running.items())
        self._bar.running = jobs
        self._bar.update(self._task, completed=done, count=f"{self._done}/{self._total}", left=left)
        if self._bar.disable and self._pulse.is_due:
            about, running = f", about {left}" if left else "", f": {jobs}" if jobs else ""
            self.say(f"{self._what} {self._done}/{self._total}, {clock_time(elapsed)} so far{about}{running}")


class _Bars(Progress):
    """The bars, and below them a line with the running jobs, which may be long."""

    def __init__(self, console: Terminal, running: str) -> None:
        self.running = running
        super().__init__(
            text_column("{task.description}"),
            BarColumn(),
            text_column("{task.fields[count]}"),
            TimeElapsedColumn(),
            text_column("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield what is drawn."""
        yield from super().get_renderables()
        if self.running:
            yield f"  {self.running}"
