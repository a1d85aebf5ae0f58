"""How jobs go: in a terminal a bar, the jobs that are running, and what failed; elsewhere lines. All on standard error."""

import time
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskID, TimeElapsedColumn

from adagp.cli.terminal import Pulse, Terminal, clock_time, text_column, time_left
from adagp.core.escape import shown
from adagp.program.jobs import Job, JobFailure


class JobProgress:
    """One bar for each stage of the work, with the time that is left of the stage, and below it the jobs that are running.

    Where nobody looks at a terminal: a line for each job that is over, and a sign of life twice a minute. `at_first` is what
    goes on before the first stage.
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
        """Print a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)
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
        self._running[shown(job.name)] = None
        self._show()

    def on_share(self, job: Job, share: float) -> None:
        """Move the bar by a part of a step."""
        self._running[shown(job.name)] = share
        self._show()

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Move the bar; tell of a failure. A job that was done before takes no time, so it tells none."""
        began_here = shown(job.name) in self._running
        self._running.pop(shown(job.name), None)
        self._before += not began_here
        self.advance()
        if failure is not None:
            self.say(f"{failure.name} failed: {failure.reason} All it said is in {failure.log}.")
        elif self._bar.disable and began_here:
            self.say(f"{self._what} {self._done}/{self._total} {job.name}")

    def _show(self) -> None:
        assert self._task is not None
        shares = [share or 0.0 for share in self._running.values()]
        elapsed, done = self._clock() - self._began, self._done + sum(shares)
        rest = time_left(elapsed, done - self._before, self._total - self._before)
        left = "" if rest is None else f"{clock_time(rest)} left"
        jobs = "; ".join(name if share is None else f"{name} {share:.0%}" for name, share in self._running.items())
        self._bar.running = jobs
        self._bar.update(self._task, completed=done, count=f"{self._done}/{self._total}", left=left)
        if self._bar.disable and self._pulse.is_due:
            parts = [
                f"{self._what} {self._done}/{self._total}",
                f"{clock_time(elapsed)} so far",
                left and f"about {left}",
            ]
            self.say(", ".join(filter(None, parts)) + (f": {jobs}" if jobs else ""))


class _Bars(Progress):
    """The bars, and a line with the jobs that are running, which may be long."""

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
