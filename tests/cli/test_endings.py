"""A full disk, a closed standard output or one whose reader has left: no traceback, and never exit code 0."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import adagp
from adagp.cli.endings import sentence

FULL = Path("/dev/full")
PRINTING = (
    "models digits_cnn --json",
    "pipeline",
    "pipeline --actions",
    "reproduce list",
    "--help",
    "train --epochs 1 --method bp --width 0.25 --batch-size 512 --json",
)
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def shell(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a line of bash in `folder`, where `adagp` is the program under test."""
    environment = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = f'adagp() {{ {sys.executable} -m adagp "$@"; }}; set -o pipefail; {line}'
    return subprocess.run(
        ["bash", "-c", words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@needs_full
@pytest.mark.slow
@pytest.mark.parametrize("command", PRINTING)
def test_a_full_disk_under_standard_output(tmp_path: Path, command: str) -> None:
    ended = shell(f"adagp {command} >/dev/full", tmp_path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert "No space left on device" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["models digits_cnn", "train --epochs 1"])
def test_a_closed_standard_output_is_refused_before_work(tmp_path: Path, command: str) -> None:
    ended = shell(f"adagp {command} >&-", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "error: standard output is closed; give it somewhere to go, such as >/dev/null.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["pipeline", "pipeline --actions"])
def test_a_reader_that_has_left(tmp_path: Path, command: str) -> None:
    ended = shell(f"adagp {command} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == ""


@pytest.mark.slow
def test_nobody_to_tell(tmp_path: Path) -> None:
    assert shell("adagp models none 2>&-", tmp_path).returncode == 2
    assert shell("adagp models none 2>/dev/full", tmp_path).returncode == 2
    assert shell("adagp datasets 2>&- >/dev/null", tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "sweep --models digits_cnn --datasets digits --out it.csv",
        "simulate resnet20 --save-workload it.json",
        "pipeline --plot it.svg",
    ],
)
def test_a_file_that_cannot_grow(tmp_path: Path, command: str) -> None:
    """A limit on the size of files stands for a full disk."""
    ended = shell(f"trap '' XFSZ; ulimit -f 1; adagp {command} 2>&1 | cat", tmp_path)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stdout
    assert "File too large" in ended.stdout


def test_sentences() -> None:
    assert sentence(OSError(28, "No space left on device", "it.csv")) == (
        "cannot write to 'it.csv': No space left on device."
    )
    assert sentence(PermissionError(13, "Permission denied", "it.csv")) == "cannot use 'it.csv': Permission denied."
    assert sentence(MemoryError()) == "there is not enough memory for this; take a smaller model, batch or width."
    assert sentence(KeyError("a defect of ours")) is None
