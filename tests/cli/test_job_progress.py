"""How jobs are followed: a bar with the time that is left in a terminal; lines everywhere else."""

import io
from pathlib import Path

from adagp.cli.progress import JobProgress
from adagp.cli.terminal import STATUS_SECONDS, Terminal
from adagp.program.jobs import Job, JobFailure


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(name: str) -> Job:
    return Job(name, print, Path(name), Path(f"{name}.log"))


def test_without_a_terminal_each_job_has_a_line_when_it_is_over() -> None:
    out = io.StringIO()
    with JobProgress(Terminal(file=out, width=80)) as progress:
        progress.begin("equal batches", 3)
        progress.on_end(job("done before"), None)
        for name in ("bp seed 0", "bp seed 1"):
            progress.on_start(job(name))
        progress.on_end(job("bp seed 1"), None)
        progress.on_end(job("bp seed 0"), JobFailure("bp seed 0", "it went wrong.", Path("it.log")))
    assert out.getvalue().splitlines() == [
        "equal batches 2/3 bp seed 1",
        "bp seed 0 failed: it went wrong. Its output is in it.log.",
    ]


def test_long_jobs_give_signs_of_life_with_the_time_that_is_left() -> None:
    out, clock = io.StringIO(), Clock()
    with JobProgress(Terminal(file=out, width=80), clock=clock) as progress:
        progress.begin("equal seconds", 4)
        progress.on_end(job("done before"), None)
        for name in ("bp seed 0", "skip seed 0"):
            progress.on_start(job(name))
        for share in (0.1, 0.2, 0.3):
            clock.now += STATUS_SECONDS / 2
            progress.on_share(job("bp seed 0"), share)
        clock.now += STATUS_SECONDS
        progress.on_share(job("skip seed 0"), 0.45)
    assert out.getvalue().splitlines() == [
        "equal seconds 1/4, 0:30 so far, about 7:00 left: bp seed 0 20%; skip seed 0",
        "equal seconds 1/4, 1:15 so far, about 3:45 left: bp seed 0 30%; skip seed 0 45%",
    ]


def test_a_stage_without_jobs_gives_signs_of_life_too() -> None:
    out, clock = io.StringIO(), Clock()
    with JobProgress(Terminal(file=out, width=80), clock=clock) as progress:
        progress.begin("calibration", 4)
        for _ in range(4):
            clock.now += STATUS_SECONDS / 2
            progress.advance()
    assert out.getvalue().splitlines() == [
        "calibration 2/4, 0:30 so far, about 0:30 left",
        "calibration 4/4, 1:00 so far, about 0:00 left",
    ]


def test_the_bar_and_the_jobs_fit_eighty_columns() -> None:
    out, clock = io.StringIO(), Clock()
    console = Terminal(file=out, width=80, force_terminal=True, color_system=None)
    with JobProgress(console, "checking the methods…", clock) as progress:
        progress._bar.refresh()
        assert "checking the methods…" in out.getvalue()
        progress.begin("equal accelerator", 100)
        for name in ("quick:feedback@4:1 seed 0", "predicted_labels@1:1 seed 0"):
            progress.on_start(job(name))
        clock.now = 60
        progress.on_share(job("quick:feedback@4:1 seed 0"), 0.5)
        progress._bar.refresh()
    last = out.getvalue()
    for part in ("equal accelerator", "0/100", "3:19:00 left"):
        assert part in last, part
    assert "quick:feedback@4:1 seed 0 50%; predicted_labels@1:1 seed 0" in last
    assert "…" not in last.replace("methods…", "")
