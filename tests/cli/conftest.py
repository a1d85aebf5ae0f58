"""The program, called as a user calls it but in this process; and a finished run."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from adagp.cli import main

SHORT = ("--width", "0.25", "--batch-size", "256", "--epochs", "2", "--warmup", "1", "--ratio", "1:1")
"""Options of a run of ten batches."""


@dataclass(frozen=True)
class Ended:
    """How a call of the program ended."""

    code: int
    out: str
    err: str


Program = Callable[..., Ended]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Return a function that runs `adagp` with some arguments in an empty folder. A traceback fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the program adds the folder for users' models

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["adagp", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    return run


@pytest.fixture
def short() -> tuple[str, ...]:
    """Return the options of a run that takes moments."""
    return SHORT


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, which is trained once."""
    folder = tmp_path_factory.mktemp("trained") / "finished"
    with pytest.raises(SystemExit) as ended:
        main(["train", *SHORT, "--out", str(folder)])
    assert ended.value.code == 0
    return folder


@pytest.fixture
def finished(program: Program, trained: Path) -> Path:
    """Return the folder of a finished run that a test may change: a copy, in the folder where `program` runs."""
    return Path(shutil.copytree(trained, "finished")).absolute()
