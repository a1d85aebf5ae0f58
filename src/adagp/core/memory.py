"""Memory of the machine: checks before large allocations, and reuse of freed memory by the C library.

Every batch allocates and frees the same tensors. By default glibc returns large ones to the operating system at once, and the
next batch gets fresh pages, each of which is cleared and mapped at the first access: up to nearly half of the time of a batch
that moves much data and computes little (docs/performance.md).
"""

import ctypes
import os
from pathlib import Path

from adagp.errors import AdagpError


def free_memory() -> int | None:
    """Return the available bytes; None if the system does not report them."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return None
    lines = (line.split() for line in table.read_text("utf-8").splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), None)


def check_memory(needed: int, what: str, error: type[AdagpError]) -> None:
    """Raise `error` if `what` needs more bytes than are free; no check if that is not known."""
    free = free_memory()
    if free is not None and needed > free:
        raise error(f"{what} needs {needed / 1e9:,.1f} GB of memory; {free / 1e9:,.1f} GB are free.")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in <malloc.h>
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
_LARGEST = (1 << 30, 1 << 25)  # the second is the maximum of older versions
_is_kept = False


def freed_memory_is_kept() -> bool:
    """Return whether `keep_freed_memory` has taken effect in this process."""
    return _is_kept


def keep_freed_memory() -> bool:
    """Make this process reuse the memory it frees, for tensors up to a gigabyte; return whether that works.

    For programs that train on CPUs; it applies to the whole process and cannot be undone. Only glibc supports it. If its
    environment variables for malloc are set, nothing changes.
    """
    global _is_kept
    if any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    if any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST):
        _is_kept = bool(mallopt(_TRIM_THRESHOLD, -1))
    return _is_kept
