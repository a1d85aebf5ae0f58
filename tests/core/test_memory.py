"""Free memory, and what does not fit into it."""

import os
import platform
import subprocess
import sys

import pytest

from adagp.core import memory
from adagp.core.memory import keep_freed_memory
from adagp.errors import DataError


def test_free_memory_is_read_from_the_system() -> None:
    free = memory.free_memory()
    assert free is None or free > 2**20


def test_what_does_not_fit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * 10**9)
    memory.check_memory(2 * 10**9, "it", DataError)
    with pytest.raises(DataError, match=r"^it needs 20\.0 GB of memory; 2\.0 GB are free\.$"):
        memory.check_memory(20 * 10**9, "it", DataError)
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    memory.check_memory(10**15, "it", DataError)


SCRIPT = """
import resource, sys
import torch
from adagp.core.memory import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.ones(2**24).add_(1)  # 64 MiB, more than the library keeps by itself
before = faults()
for _ in range(4):
    torch.ones(2**24).add_(1)
print(kept, faults() - before)
"""


def run(argument: str) -> tuple[str, int]:
    """Return whether the process keeps memory, and how many pages it got again in four batches."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, argument], capture_output=True, text=True, check=True, env=environment
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone has it")
def test_memory_is_reused_between_batches() -> None:
    told, kept = run("keep")
    _, fresh = run("leave")
    assert told == "True"
    assert kept < 20
    assert fresh >= 4 * 64 // 2  # huge pages, where the system has them, are of 2 MiB


@pytest.mark.parametrize(
    "environment", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"}]
)
def test_environment_variables_take_precedence(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not keep_freed_memory()
