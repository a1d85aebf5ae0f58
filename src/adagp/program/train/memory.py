"""How much memory a run took at most."""

import resource
import sys
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> int:
    """Return the most memory, in bytes, that this process has had so far.

    On a CUDA device that is what torch has allocated there. Otherwise it is the process's resident memory with all that
    Python, torch and the data set take, since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would also count the program that started this one
        for line in status.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
