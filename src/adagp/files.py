"""Files that users name: read within limits, and written only where they can be, which is known before any work."""

import errno
import tempfile
from pathlib import Path

from adagp.errors import AdagpError, OptionError

LARGEST_TEXT = 64 * 2**20
"""Bytes of a text file at most: more is no program, workload or configuration that could be worked through."""


def read_text(path: Path, what: str, error: type[AdagpError] = OptionError) -> str:
    """Return the text in the file `path`; raise `error` if there is none, it is too large, or not UTF-8."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe or a device may never end
            raise OSError(errno.EINVAL, "it is not a file")
        if (size := path.stat().st_size) > LARGEST_TEXT and path.is_file():
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {LARGEST_TEXT:,} are allowed")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise error(f"cannot read {what} '{path}': it is not text.") from None
    except (OSError, ValueError) as fault:  # ValueError: a null character in the name
        raise error(f"cannot read {what} '{path}': {reason(fault)}.") from None


def reason(fault: Exception) -> str:
    """Return why a file operation failed, without the file's name."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault)


def check_output_file(path: Path, doing: str = "write") -> None:
    """Refuse a file that cannot be written, naming what one was `doing`. Nothing is left behind."""
    try:
        if path.is_dir():
            raise OptionError(f"cannot {doing} '{path}': it is a folder.")
        if not path.parent.is_dir():
            raise OptionError(f"cannot {doing} '{path}': there is no folder '{path.parent}'.")
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            path.open("xb").close()
            path.unlink()
    except (OSError, ValueError) as fault:
        if isinstance(fault, OptionError):
            raise
        raise OptionError(f"cannot {doing} '{path}': {reason(fault)}.") from None


def check_output_folder(path: Path) -> None:
    """Refuse a folder that can neither be made nor written into. Nothing is left behind."""
    try:
        there = path
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise OptionError(f"cannot write to the folder '{path}': '{there}' is not a folder.")
        tempfile.TemporaryFile(dir=there).close()
    except (OSError, ValueError) as fault:
        if isinstance(fault, OptionError):
            raise
        raise OptionError(f"cannot write to the folder '{path}': {reason(fault)}.") from None
