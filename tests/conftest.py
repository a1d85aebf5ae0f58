"""What all tests share."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import adagp

torch.set_num_threads(1)  # the tests run in several processes; small tensors gain nothing from threads
settings.register_profile("steady", deadline=None, derandomize=True)  # the same examples on any machine, slow or not
settings.load_profile("steady")

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def python() -> Python:
    """Return a function that runs a fresh interpreter, which finds the adagp under test, and returns how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    return run
