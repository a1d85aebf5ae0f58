"""One process at a time in a folder. The kernel holds the lock and gives it back when the process ends, however that is."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adagp.errors import RunError

LOCK = ".lock"
"""The file in a folder that is locked; it holds the id of the process that locked it last, and may be deleted."""
_KERNEL_LOCKS = Path("/proc/locks")
_held: dict[Path, int] = {}
"""Open lock files of this process by folder."""


def hold(folder: Path) -> bool:
    """Lock `folder` until `release` or the end of this process; refuse if another process has locked it.

    Return whether the lock was taken: not if this process has it already, and not on systems and file systems without such
    locks.
    """
    try:
        import fcntl
    except ImportError:
        return False
    place = folder.resolve()
    if place in _held:
        return False
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # whatever a foreign folder has there
    try:
        file = os.open(place / LOCK, flags, 0o666)
    except OSError as error:
        raise RunError(f"cannot lock the folder '{folder}': {error.strerror}.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(file)
        os.close(file)
        raise RunError(f"another process{owner} is at work in '{folder}'; wait for it, or end it first.") from None
    except OSError:  # a file system that has no locks
        os.close(file)
        return False
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    _held[place] = file
    return True


def release(folder: Path) -> None:
    """Give the lock on `folder` back, if this process holds it."""
    file = _held.pop(folder.resolve(), None)
    if file is not None:
        os.close(file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on `folder` for a while."""
    taken = hold(folder)
    try:
        yield
    finally:
        if taken:
            release(folder)


def is_held(folder: Path) -> bool:
    """Tell whether a process has locked `folder`; without a try, which could make that of another process fail."""
    try:
        number = (folder / LOCK).stat().st_ino
        held = _KERNEL_LOCKS.read_text().splitlines()
    except OSError:
        return _owner_lives(folder)
    return any(
        words[1] == "FLOCK" and words[5].endswith(f":{number}") for line in held if len(words := line.split()) > 5
    )


def _owner_lives(folder: Path) -> bool:
    """Tell the same where the kernel keeps no list: whether the process that locked the folder last is still there."""
    try:
        os.kill(int((folder / LOCK).read_text()), 0)
    except PermissionError:  # it is another user's
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _owner(file: int) -> str:
    """Return ` (process 123)`, if the lock file says so."""
    try:
        number = os.pread(file, 20, 0)
    except OSError:
        return ""
    return f" (process {number.decode()})" if number.isdigit() else ""
