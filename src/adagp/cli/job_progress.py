"""How jobs go, in a terminal: a bar, the jobs that are running, and what failed. All of it on standard error."""

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn

from adagp.cli.terminal import Terminal, text_column
from adagp.jobs import Job, JobFailure
from adagp.shown import shown


class JobProgress:
    """One bar for each stage of the work.

    When nobody looks, it is silent but for failures and remarks; with `lines` it tells of every job that is over instead.
    """

    def __init__(self, console: Terminal, *, lines: bool = False) -> None:
        self._console = console
        self._lines = lines
        self._running: list[str] = []
        self._task: TaskID | None = None
        self._bar = Progress(
            text_column("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            text_column("{task.fields[running]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> "JobProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Add a bar, for `total` steps of which some are `done` already."""
        self._total, self._done = total, done
        self._task = self._bar.add_task(what, total=total, completed=done, running="")

    def advance(self) -> None:
        """Move the bar."""
        assert self._task is not None
        self._done += 1
        self._bar.advance(self._task)

    def on_start(self, job: Job) -> None:
        """Show the job beside the bar."""
        self._running.append(shown(job.name))
        self._show()

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Move the bar; tell of a failure."""
        self._running = [name for name in self._running if name != shown(job.name)]
        self._show()
        self.advance()
        if failure is not None:
            self.say(f"{failure.name} failed: {failure.reason} All it said is in {failure.log}.")
        elif self._lines and self._bar.disable:
            self.say(f"{self._done}/{self._total} {job.name}")

    def _show(self) -> None:
        assert self._task is not None
        self._bar.update(self._task, running="; ".join(self._running))
