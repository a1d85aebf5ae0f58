"""`torchrun -m adagp train --parallel`, as a user calls it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import adagp

pytestmark = pytest.mark.slow

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
OPTIONS = ("--model", "net:mortal", "--batch-size", "256", "--epochs", "2", "--warmup", "1", "--ratio", "1:1")


def torchrun(folder: Path, *arguments: str, marker: str = "none") -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(adagp.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "MARKER": marker,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    command += ["-m", "adagp", "train", *OPTIONS, "--parallel", "data", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_killed_worker_is_started_again_and_the_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET, "utf-8")
    undisturbed = torchrun(tmp_path, "--out", "whole", "--json")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert undisturbed.stdout.count('"command"') == 1  # one process speaks for all
    (tmp_path / "marker").touch()
    disturbed = torchrun(tmp_path, "--out", "run", marker="marker")
    assert disturbed.returncode == 0, disturbed.stderr
    assert not (tmp_path / "marker").exists()
    first, second = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("whole", "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_torchrun_it_is_told_how(program: Callable[..., Any]) -> None:
    ended = program("train", "--parallel", "data")
    wanted = (
        "error: --parallel needs processes: start them with torchrun --nproc-per-node 4 -m adagp train --parallel ...\n"
    )
    assert (ended.code, ended.err) == (2, wanted)


def test_an_unknown_way_is_answered_with_the_known(program: Callable[..., Any]) -> None:
    ended = program("train", "--parallel", "pipeline:gpip")
    assert ended.code == 2
    assert ended.err == (
        "error: unknown parallel 'pipeline:gpip'. Did you mean 'pipeline:gpipe'? Choose from: data, none, "
        "pipeline:chimera, pipeline:dapple, pipeline:gpipe.\n"
    )
