from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.run import TrainConfig


def test_help_loads_nothing_heavy(python: Callable[..., Any]) -> None:
    heavy = ("torch", "torchvision", "timm", "matplotlib", "numpy")
    program = (
        "import sys; from adagp.cli import app; code = app(['--help'], standalone_mode=False); "
        f"print('loaded:', *(name for name in {heavy!r} if name in sys.modules))"
    )
    ended = python("-c", program)
    assert ended.stderr == ""
    assert "train" in ended.stdout
    assert ended.stdout.splitlines()[-1].strip() == "loaded:"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_answers(arguments: list[str]) -> None:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0
    assert "Usage: " in ended.output


def test_every_option_of_a_run_can_be_given() -> None:
    output = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", "--help"]).output
    for name in TrainConfig().as_dict():
        assert f"--{name.replace('_', '-')} " in output
