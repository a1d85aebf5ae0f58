"""How the program ends when something outside it fails: a full disk, a closed output, too little memory. One sentence each."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper

import typer

from adagp.core.escape import escaped
from adagp.core.files import reason
from adagp.errors import AdagpError, OptionError

FAILED, READER_LEFT = 2, 1
"""Exit codes: an error that was printed; standard output closed by its reader, as `| head` does, where nothing is printed."""
LONGEST_MESSAGE = 8000


def check_streams() -> None:
    """Check that standard output is open, before any work; output to a closed standard error is dropped."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    if sys.stdout is None:
        raise OptionError("standard output is closed; redirect it, for example with >/dev/null.")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that its encoding lacks is no reason to fail


@contextmanager
def flushed_output() -> Iterator[None]:
    """Flush standard output at the end, so that a failure can be reported."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def drop_output() -> None:
    """Forget what standard output could not take; else Python would try again at exit, and complain."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sentence(error: BaseException) -> str | None:
    """Return the message for an error; None if it is a bug of ours, which needs its traceback."""
    if isinstance(error, AdagpError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        target = f"'{error.filename}'" if error.filename is not None else "a file or standard output"
        word = "write to" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS) else "use"
        return f"cannot {word} {target}: {reason(error)}."
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if out_of_memory or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "out of memory; use a smaller model, batch size or width."
    return None


def print_error(text: str) -> None:
    """Print an error, if standard error is open."""
    text = escaped(text)
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[: LONGEST_MESSAGE // 2]} ... {text[-LONGEST_MESSAGE // 2 :]}"
    with suppress(OSError):
        typer.secho(f"error: {text}", fg=typer.colors.RED, err=True)
