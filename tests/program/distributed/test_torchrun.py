"""`torchrun -m adagp train --parallel`, as a user calls it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.program.distributed.conftest import OPTIONS, Start, plain_values

import adagp
from adagp.program.run import RunFolder, TrainConfig

pytestmark = pytest.mark.medium

NET = """
import os, signal
from pathlib import Path
from torch import nn

class Mortal(nn.Module):
    calls = 0

    def forward(self, value):
        Mortal.calls += 1
        here = Path(os.environ.get("MARKER", "none"))
        if Mortal.calls == 7 and os.environ["RANK"] == "1" and here.is_file():
            here.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

def mortal(classes, image):
    return nn.Sequential(Mortal(), nn.Conv2d(image[0], 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, classes))
"""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(adagp.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}
RUN = {"model": "net:mortal", "batch_size": 256, "ratio": "1:1", "check_every": 3}


def torchrun(folder: Path, *arguments: str, marker: str = "none") -> "subprocess.CompletedProcess[str]":
    environment = {**ENVIRONMENT, "MARKER": marker}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    config = TrainConfig.from_dict({**OPTIONS, **RUN, "parallel": "data"}, "test")
    command += ["-m", *shlex.split(config.command()), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_the_run_ends_with_the_same_weights(tmp_path: Path, start: Start) -> None:
    (tmp_path / "net.py").write_text(NET, "utf-8")
    assert start(2, "whole", "data", **RUN) == [0, 0]
    (tmp_path / "marker").touch()
    disturbed = torchrun(tmp_path, "--out", "run", "--json", marker="marker")
    assert disturbed.returncode == 0, disturbed.stderr
    assert disturbed.stdout.count('"command"') == 1  # one process speaks for all
    assert not (tmp_path / "marker").exists()
    first, second = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("whole", "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def begun(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a long run under torchrun and return it when its first epoch is over."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "adagp", "train"]
    command += ["--parallel", "data", "--batch-size", "256", "--epochs", "5000", "--warmup", "1", "--ratio", "1:1"]
    command += ["--checkpoint-seconds", "1000", "--out", "run", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not RunFolder(folder / "run").rows():
        assert process.poll() is None
        time.sleep(0.05)
    return process


def workers(process: "subprocess.Popen[str]") -> dict[int, int]:
    """Return the processes that torchrun has started by their rank."""
    found = {}
    for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        words = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        ranks = [word[5:] for word in words if word.startswith(b"RANK=")]
        if ranks:
            found[int(ranks[0])] = int(number)
    return found


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_die_with_torchrun(tmp_path: Path) -> None:
    process = begun(tmp_path)
    left = workers(process)
    assert sorted(left) == [0, 1]
    process.kill()
    process.communicate()
    while any(map(is_running, left.values())):  # as soon as the kernel gets to it
        time.sleep(0.01)


@pytest.mark.slow
def test_a_signal_to_end_leaves_a_checkpoint(tmp_path: Path) -> None:
    process = begun(tmp_path)
    os.killpg(process.pid, signal.SIGTERM)  # all get it, and once more from torchrun
    _, error = process.communicate(timeout=60)
    assert "Stopped. Continue with: adagp train --resume run\n" in error
    assert "KeyboardInterrupt" not in error
    assert plain_values(tmp_path / "run")["trainer"]["epoch"] > 0  # the first one is of the start


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_run_and_is_named(tmp_path: Path) -> None:
    process = begun(tmp_path, "--timeout", "2")
    alive = workers(process)
    os.kill(alive[1], signal.SIGSTOP)
    while is_running(alive[0]):
        time.sleep(0.05)
    os.kill(alive[1], signal.SIGKILL)  # torchrun would wait for it
    _, error = process.communicate(timeout=60)
    said = [line for line in error.splitlines() if line.startswith("error: ")]
    assert said == [
        "error: process 1 sent nothing for 2 seconds (--timeout): stopped, or hung up. "
        "Continue from the last checkpoint: adagp train --resume run"
    ]
