"""Untrusted ONNX files and torch.export programs, read in a separate process with resource limits.

Their shapes are computed by the code of torch and ONNX, which a damaged or hostile file can crash or keep busy forever. The
process returns a workload as JSON, which is checked like any other, or the message of an error.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from adagp.core.escape import escaped
from adagp.core.limits import Limits, end_in_words, used_memory
from adagp.errors import AdagpError, DataError, OptionError
from adagp.hw.workload import Workload, workload_from_json

SECONDS = 120
"""The limit of processor time in seconds, far above what the largest models need."""
MEMORY = 8 * 2**30
"""The limit of memory in bytes, beyond what Python and its libraries take; weights are not read."""
_ERRORS: dict[str, type[AdagpError]] = {"DataError": DataError, "OptionError": OptionError}


def import_model(path: Path, shape: tuple[int, ...] | None, limits: Limits | None = None) -> Workload:
    """Return the workload of the model in `path`; `shape`, of one sample, sets sizes that the file leaves open."""
    limits = limits or Limits(SECONDS, MEMORY, file_size=0)
    words = [str(limits.seconds), str(limits.memory), os.fspath(path), *map(str, shape or ())]
    command = [sys.executable, "-P", "-m", "adagp.tracing.isolated", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, env=environment, stdin=subprocess.DEVNULL, timeout=20 * SECONDS
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{escaped(path)} cannot be read: the process that reads it took too long.") from None
    if done.returncode or not done.stdout:
        how = end_in_words(done.returncode).replace("it ", "the process that reads it ", 1)
        raise DataError(f"{escaped(path)} cannot be read: {how}.")
    result = json.loads(done.stdout)
    if "error" in result:
        raise _ERRORS.get(result["kind"], DataError)(result["error"])
    return workload_from_json(result["workload"])


def main(words: list[str]) -> None:
    """Read the model that a command line names, and write the result as JSON to standard output."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries must not print into the result
    seconds, memory, name, *sizes = words
    path, shape = Path(name), tuple(map(int, sizes)) or None
    from adagp.tracing.exported_program import load_exported_program
    from adagp.tracing.onnx_model import load_onnx, prepare

    load = load_onnx if path.suffix == ".onnx" else load_exported_program
    try:
        if load is load_onnx:
            prepare()
        tempfile.gettempdir()  # torch calls it, and its first call writes a file, which the limits forbid
        Limits(int(seconds), used_memory() + int(memory), file_size=0).apply()
        result = {"workload": load(path, shape).to_json()}
    except AdagpError as error:
        result = {"kind": type(error).__name__, "error": str(error)}
    except MemoryError:
        result = {"kind": "DataError", "error": f"{escaped(path)} cannot be read: it needs too much memory."}
    json.dump(result, output)
    output.close()


if __name__ == "__main__":
    main(sys.argv[1:])
