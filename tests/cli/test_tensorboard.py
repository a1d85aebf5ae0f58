import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_events_are_in_the_run_folder(program: Any, short: tuple[str, ...]) -> None:
    assert program("train", *short, "--out", "run", "--tensorboard").code == 0
    assert len(list(Path("run/tensorboard").glob("events.out.tfevents.*"))) == 1
    assert program("train", *short, "--out", "plain").code == 0
    assert not Path("plain/tensorboard").exists()


def test_without_the_package_nothing_is_begun(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = program("train", "--out", "run", "--tensorboard")
    assert (ended.code, ended.err) == (
        2,
        "error: --tensorboard needs tensorboard, which is not installed: pip install 'adagp[tensorboard]'.\n",
    )
    assert not Path("run").exists()
