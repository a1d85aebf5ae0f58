"""How a comparison goes, in a terminal: a bar, the jobs that are running, and what failed. All of it on standard error."""

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from adagp.compare.execute import Failure, Job


class CompareProgress:
    """One bar for each part of the work. Silent but for failures and remarks when nobody looks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._running: list[str] = []
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[running]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> "CompareProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def begin(self, what: str, total: int) -> None:
        """Add a bar."""
        self._task = self._bar.add_task(what, total=total, running="")

    def advance(self) -> None:
        """Move the bar."""
        assert self._task is not None
        self._bar.advance(self._task)

    def on_start(self, job: Job) -> None:
        """Show the job beside the bar."""
        self._running.append(job.name)
        self._show()

    def on_end(self, job: Job, failure: Failure | None) -> None:
        """Move the bar; tell of a failure, with its last lines."""
        self._running = [name for name in self._running if name != job.name]
        self._show()
        self.advance()
        if failure is not None:
            self.say(f"{failure.name} failed (exit code {failure.code}); all it said is in {failure.log}:")
            for line in failure.lines:
                self.say(f"    {line}")

    def _show(self) -> None:
        assert self._task is not None
        self._bar.update(self._task, running="; ".join(self._running))
