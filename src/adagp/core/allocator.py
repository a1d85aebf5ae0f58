"""Keeping the memory that was freed, for the next batch.

Every batch allocates and frees the same tensors. The C library gives large ones back to the operating system as soon as
they are freed, and the next batch gets them as fresh pages, each of which is cleared and entered into the page table at the
first touch: up to nearly half of the time of a batch that moves much and computes little (docs/performance.md).
"""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of the parameters in <malloc.h>
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
_LARGEST = (1 << 30, 1 << 25)  # the second is the most that older C libraries take
_kept = False


def freed_memory_is_kept() -> bool:
    """Tell whether `keep_freed_memory` has taken effect in this process."""
    return _kept


def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees, up to tensors of a gigabyte; tell whether it does.

    For programs that train on CPUs; it holds for the whole process and cannot be undone. Only glibc has it. It is left
    alone where its environment variables say how memory is to be handled.
    """
    global _kept
    if any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    if any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST):
        _kept = bool(mallopt(_TRIM_THRESHOLD, -1))
    return _kept
