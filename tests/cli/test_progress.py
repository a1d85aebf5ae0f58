"""How a run is followed: a bar in a terminal, also a narrow one; lines everywhere else."""

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from adagp.cli.progress import LiveProgress, StopFlag
from adagp.cli.terminal import STATUS_SECONDS, Terminal, busy, clock_time, time_left
from adagp.core.plan import Phase
from adagp.program.run.config import TrainConfig
from adagp.program.train.loop import BatchStatus, Loop
from adagp.program.train.session import Session


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run(tmp_path: Path) -> tuple[Session, Loop]:
    """Return a run of 20 epochs of 44 batches that has just begun."""
    session = Session(TrainConfig(width=0.25))
    return session, session.start(tmp_path / "run")


ROW: dict[str, Any] = {"epoch": 2, "label": "1:1", "train_loss": 0.5, "test_loss": 0.25, "test_accuracy": 0.875}


def test_without_a_terminal_a_line_for_each_epoch(run: tuple[Session, Loop]) -> None:
    out = io.StringIO()
    with LiveProgress(Terminal(file=out, width=80), *run) as progress:
        progress.on_batch(BatchStatus(2, 43, Phase.GP, 0.5, 0.75))
        progress.on_epoch(ROW)
    assert out.getvalue() == "epoch   3 1:1      train loss 0.5000  test loss 0.2500  test accuracy 0.8750\n"


def test_a_long_epoch_gives_signs_of_life(run: tuple[Session, Loop]) -> None:
    out, clock = io.StringIO(), Clock()
    with LiveProgress(Terminal(file=out, width=80), *run, clock=clock) as progress:
        for batch in range(44):
            clock.now += STATUS_SECONDS / 20
            means = (2.0, 0.125) if batch < 40 else (None, None)
            progress.on_batch(BatchStatus(0, batch, Phase.WARMUP, *means))
        clock.now += STATUS_SECONDS
        progress.on_batch(BatchStatus(1, 0, Phase.WARMUP, None, None))
    assert out.getvalue().splitlines() == [
        "epoch 1/20, batch 20/880, loss 2.0000 accuracy 0.125, about 21:30 left",
        "epoch 1/20, batch 40/880, loss 2.0000 accuracy 0.125, about 21:00 left",
        "epoch 2/20, batch 45/880, about 29:41 left",
    ]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_bar_has_everything_at_any_usual_width(run: tuple[Session, Loop], width: int) -> None:
    out = io.StringIO()
    with LiveProgress(Terminal(file=out, width=width, force_terminal=True, color_system=None), *run) as progress:
        progress.on_batch(BatchStatus(11, 43, Phase.WARMUP, 0.12345, 0.98765))
        progress._bar.refresh()
        line = out.getvalue().rpartition("\x1b[2K")[2]
    for part in ("epoch 12/20", "warmup", "━", "528/880", "loss 0.1235 accuracy 0.988"):
        assert part in line, (part, line)
    assert ("batches/s" in line) == (width >= 120)
    assert "…" not in line


def test_a_terminal_is_told_what_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with busy("loading torch…"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with busy("loading torch…"):
        pass
    assert "loading torch…" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    with busy("loading torch…"):
        pass
    assert capsys.readouterr().err == "", "of several processes the first one speaks"


def test_times() -> None:
    assert [clock_time(seconds) for seconds in (0.4, 7, 59.6, 3599, 3600, 36_061)] == [
        "0:00",
        "0:07",
        "1:00",
        "59:59",
        "1:00:00",
        "10:01:01",
    ]
    assert time_left(10, 0, 4) is None
    assert time_left(10, 1, 4) == 30
    assert time_left(15, 0.002, 12) is None, "no 25 hours while the first of twelve short jobs starts"
    assert time_left(15, 0.5, 12) == 345


def test_the_first_signal_is_a_request_and_the_second_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopFlag() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
