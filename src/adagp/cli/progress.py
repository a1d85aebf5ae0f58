"""Carrying out a run in a terminal: live progress, Ctrl-C, the table at the end. All of it on standard error."""

import signal
import sys
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from adagp.train.loop import Loop, News
from adagp.train.session import Session

STOPPED = 130
"""Exit code of a run that Ctrl-C stopped, as shells have it."""


def carry_out(session: Session, loop: Loop) -> dict[str, Any]:
    """Run to the end and return the summary. Ctrl-C stops after the running batch, with a checkpoint; twice, at once."""
    console = Console(stderr=True, quiet=session.quiet)
    with StopFlag() as stop, LiveProgress(console, session, loop) as progress:
        summary = session.run(loop, progress, stop)
    if summary is None:
        console.print(f"Stopped. Go on with: adagp train --resume {loop.folder.path}", highlight=False, soft_wrap=True)
        sys.exit(STOPPED)
    if session.quiet:
        return summary
    console.print(summary_table(summary))
    console.print(f"Run folder: {loop.folder.path}", highlight=False, soft_wrap=True)
    return summary


class StopFlag:
    """Turns the first Ctrl-C (or termination request) into an answer to `stop()`, and the second into an interrupt."""

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
        if self._set:
            raise KeyboardInterrupt
        self._set = True


class LiveProgress:
    """A bar over the batches of the run with epoch, phase, loss and accuracy. Silent when nobody looks."""

    def __init__(self, console: Console, session: Session, loop: Loop) -> None:
        self._epochs = session.config.epochs
        self._batches = session.config.batches or self._epochs * session.task.batches_per_epoch
        self._done = loop.trainer.done
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            TextColumn("{task.fields[phase]:<6}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]} batches/s"),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]:.4f} accuracy {task.fields[accuracy]:.3f}"),
            console=console,
            disable=session.quiet or not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        total = self._batches
        start: dict[str, Any] = {"epoch": f"1/{self._epochs}", "phase": "", "speed": "-", "loss": 0.0, "accuracy": 0.0}
        self._task: TaskID = self._bar.add_task("", total=total, completed=self._done, **start)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_batch(self, news: News) -> None:
        """Move the bar."""
        if self._bar.disable:
            return
        speed = self._bar.tasks[self._task].speed
        self._bar.update(
            self._task,
            advance=1,
            epoch=f"{news.epoch + 1}/{self._epochs}",
            phase=str(news.phase),
            speed="-" if speed is None else f"{speed:.1f}",
            loss=news.loss,
            accuracy=news.accuracy,
        )

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Print a line that stays."""
        if self._bar.disable:
            return
        self._bar.console.print(
            f"epoch {row['epoch'] + 1:>3} {row['label']:<8} train loss {row['train_loss']:.4f}  "
            f"test loss {row['test_loss']:.4f}  test accuracy {row['test_accuracy']:.4f}",
            highlight=False,
        )


def summary_table(summary: dict[str, Any]) -> Table:
    """Return the result of a run for reading."""
    table = Table(title=f"{summary['model']} on {summary['dataset']}, method {summary['method']}")
    for name in ("phase", "batches", "seconds", "samples/s"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    counts = summary["batches"]
    shown = {"warmup": counts["warmup"], "bp": counts["bp"] - counts["warmup"], "gp": counts["gp"] + counts["guarded"]}
    for phase, count in shown.items():
        if count:
            seconds = summary["seconds_by_phase"].get(phase, 0.0)
            table.add_row(phase, str(count), f"{seconds:.2f}", f"{summary['samples_per_second'].get(phase, 0):.0f}")
    if counts["guarded"]:
        table.add_row("of gp, refused by the guard", str(counts["guarded"]), "", "")
    table.caption = (
        f"test accuracy {summary['test_accuracy']:.4f}, test loss {_figure(summary['test_loss'])}, "
        f"{summary['seconds']:.1f} s with data and evaluation"
    )
    if "test_bleu" in summary:
        table.caption += f", test BLEU {summary['test_bleu']:.2f} ({summary['bleu_signature']})"
    if "test_map50" in summary:
        table.caption += f", test mAP at IoU 0.5 {summary['test_map50']:.4f}"
    return table


def _figure(value: float | None) -> str:
    """Return a number for reading; None stands for one that was not finite."""
    return "not finite" if value is None else f"{value:.4f}"
