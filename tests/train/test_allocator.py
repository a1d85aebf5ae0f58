"""What the C library does with freed memory, seen in processes of their own."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from adagp.train.allocator import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.ones(2**24).add_(1)  # 64 MiB, more than the library keeps by itself
before = faults()
for _ in range(4):
    torch.ones(2**24).add_(1)
print(kept, faults() - before)
"""


def run(argument: str, **environment: str) -> tuple[str, int]:
    """Return what the process was told, and how many pages it got anew in four batches."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, argument], capture_output=True, text=True, check=True, env=environment or None
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has it")
def test_a_batch_gets_the_memory_of_the_last_one() -> None:
    """Huge pages, where the system has them, count as one each."""
    told, kept = run("keep")
    _, fresh = run("leave")
    if told == "False":
        pytest.skip("this C library does not keep memory")
    assert kept < 20
    assert fresh >= 4 * 64 // 2  # a page has 2 MiB at most


@pytest.mark.parametrize(
    "environment", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"}]
)
def test_the_environment_goes_before(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    from adagp.train.allocator import keep_freed_memory

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not keep_freed_memory()
