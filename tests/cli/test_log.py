import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.medium


def test_scalars_are_in_the_run_folder(program: Any, short: tuple[str, ...]) -> None:
    assert program("train", *short, "--out", "run", "--tensorboard", "--log", "csv,tensorboard").code == 0
    assert len(list(Path("run/tensorboard").glob("events.out.tfevents.*"))) == 1
    assert "epoch/test_accuracy" in Path("run/scalars.csv").read_text()
    assert program("train", *short, "--out", "plain").code == 0
    assert not {"tensorboard", "scalars.csv"} & {path.name for path in Path("plain").iterdir()}


def test_without_the_package_nothing_is_begun(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = program("train", "--out", "run", "--log", "wandb")
    expected = "error: --log wandb needs wandb, which is not installed: pip install '.[wandb]'.\n"
    assert (ended.code, ended.err) == (2, expected)
    assert not Path("run").exists()
