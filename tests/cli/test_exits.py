"""A full disk, a closed standard output or one whose reader has left: no traceback, and never exit code 0."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import adagp
from adagp.cli import COMMANDS, sentence

Program = Callable[..., Any]

FULL = Path("/dev/full")
PRINTING = ("pipeline --actions", "--help", "train --epochs 1 --method bp --width 0.25 --batch-size 512 --json")
"""In processes of their own; all commands are tried further below."""
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def shell(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a line of bash in `folder`, where `adagp` is the program under test."""
    environment = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = f'adagp() {{ {sys.executable} -m adagp "$@"; }}; set -o pipefail; {line}'
    return subprocess.run(
        ["bash", "-c", words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@needs_full
@pytest.mark.medium
@pytest.mark.parametrize("command", PRINTING)
def test_a_full_disk_under_standard_output(tmp_path: Path, command: str) -> None:
    ended = shell(f"adagp {command} >/dev/full", tmp_path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert "No space left on device" in ended.stderr


@pytest.mark.medium
@pytest.mark.parametrize("command", ["models digits_cnn", "train --epochs 1"])
def test_a_closed_standard_output_is_rejected_before_work(tmp_path: Path, command: str) -> None:
    ended = shell(f"adagp {command} >&-", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "error: standard output is closed; redirect it, for example with >/dev/null.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
@pytest.mark.parametrize("command", ["pipeline", "pipeline --actions"])
def test_a_reader_that_has_left(tmp_path: Path, command: str) -> None:
    ended = shell(f"adagp {command} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == ""


@pytest.mark.medium
def test_nobody_to_tell(tmp_path: Path) -> None:
    assert shell("adagp models none 2>&-", tmp_path).returncode == 2
    assert shell("adagp models none 2>/dev/full", tmp_path).returncode == 2
    assert shell("adagp datasets 2>&- >/dev/null", tmp_path).returncode == 0


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: what stands here for a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


TINY = "--epochs 2 --warmup 1 --ratio 1:1 --width 0.25 --batch-size 700"
WRITING = (
    f"train {TINY} --out it",
    f"train {TINY} --log csv --out it",
    f"compare --methods bp,skip@1:1 --seeds 1 {TINY} --large-batch 0 --regimes epochs --jobs 1 --out it",
    "demo --out it",
    "reproduce adagp-figure20 --out it",
    "plot old --out it",
    "report old --out it.html",
    "simulate resnet20 --save-workload it.json",
    "simulate resnet20 --csv it.csv",
    "simulate resnet20 --plot it.png",
    "simulate resnet20 --export zigzag --out it",
    "sweep --models resnet20 --datasets cifar10 --dataflows ws --out it.csv",
    "sweep --models resnet20 --datasets cifar10 --dataflows ws --plot it.svg",
    "explore resnet20 --array 12x15 --buffer 64,128 --dataflow ws --workers 1 --out it.csv",
    "explore resnet20 --array 12x15 --buffer 64,128 --dataflow ws --workers 1 --plot it.svg",
    "pipeline --plot it.svg",
)
"""A command line for each thing that is written."""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("command", "size"), [*((command, 0) for command in WRITING), *((one, 1500) for one in WRITING[:2])]
)
def test_a_full_disk(program: Program, write_run: Callable[..., Path], command: str, size: int) -> None:
    write_run("old", epochs=3)
    target = Path(next(word for word in command.split() if word.startswith("it")))
    if target.suffix:
        target.write_text("what was there before")
    force = ["--force"] if command.startswith("explore") else []
    with small_files(size):
        ended = program(*command.split(), *force)
    assert ended.code == 2, ended
    assert ended.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in ended.err
    assert "File too large" in ended.err
    if target.suffix:
        assert target.read_text() == "what was there before"
    assert [path for path in Path().rglob("*.tmp") if path.stat().st_size] == []


@pytest.mark.medium
@needs_full
@pytest.mark.parametrize(
    "command",
    [
        "models digits_cnn",
        "datasets",
        "pipeline",
        "reproduce list",
        "simulate resnet20",
        "sweep --models resnet20 --datasets cifar10 --dataflows ws",
        "explore resnet20 --array 12x15 --buffer 64,128 --dataflow ws --workers 1",
        "explore resnet20 --array 12x15 --buffer 64,128 --dataflow ws --workers 1 --json",
        "plot old",
        "report old",
        f"train {TINY} --json --out it",
        "rtl --help",
    ],
)
def test_standard_output_on_a_full_disk(
    program: Program, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    write_run("old", epochs=3)
    with FULL.open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        ended = program(*command.split())
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert "No space left on device" in ended.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_wants_a_standard_output(program: Program, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    ended = program(command)
    assert ended.code == 2
    assert ended.err == "error: standard output is closed; redirect it, for example with >/dev/null.\n"


def test_sentences() -> None:
    assert sentence(OSError(28, "No space left on device", "it.csv")) == (
        "cannot write to 'it.csv': No space left on device."
    )
    assert sentence(PermissionError(13, "Permission denied", "it.csv")) == "cannot use 'it.csv': Permission denied."
    assert sentence(MemoryError()) == "out of memory; use a smaller model, batch size or width."
    assert sentence(KeyError("a defect of ours")) is None
