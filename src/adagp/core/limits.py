"""Limits of processes that read foreign files: processor time, memory, size and number of files. The kernel enforces them."""

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What a process may use: seconds of processor time, bytes of memory, bytes of a file that it writes, open files."""

    seconds: int
    memory: int
    file_size: int
    files: int = 1024

    def apply(self, process: int = 0) -> None:
        """Limit the process with this id, by default the current one; a hard limit that is already lower stays."""
        limits = {
            resource.RLIMIT_CPU: self.seconds,
            resource.RLIMIT_AS: self.memory,
            resource.RLIMIT_FSIZE: self.file_size,
            resource.RLIMIT_NOFILE: self.files,
            resource.RLIMIT_CORE: 0,
        }
        for kind, most in limits.items():
            _, hard = resource.getrlimit(kind)
            # At the soft limit of time a process gets SIGXCPU, which identifies the cause; at the hard limit, SIGKILL.
            both = [most, most + 5 if kind == resource.RLIMIT_CPU else most]
            soft, hard = both if hard == resource.RLIM_INFINITY else [min(limit, hard) for limit in both]
            if hasattr(resource, "prlimit"):  # Linux
                resource.prlimit(process, kind, (soft, hard))
            elif process == 0 and kind != resource.RLIMIT_AS:  # other kernels do not enforce that one
                resource.setrlimit(kind, (soft, hard))


def used_memory() -> int:
    """Return the bytes of address space that this process has; 0 if that is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def all_memory() -> int:
    """Return the bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def end_in_words(code: int) -> str:
    """Return in words how a process ended; `code` is its return code in `subprocess`, negative for a signal."""
    if code >= 0:
        return f"it ended with code {code}"
    if -code == signal.SIGXCPU:
        return "it took too long"
    try:
        return f"it ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it ended by signal {-code}"
