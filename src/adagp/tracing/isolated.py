"""Untrusted ONNX files and torch.export programs, read in a separate process with resource limits.

Their shapes are computed by the code of torch and ONNX, which a damaged or hostile file can crash, or keep busy for ever. The
process hands back a workload as JSON, which is checked as any other, or the sentence of an error.
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
"""Processor seconds that the largest of models do not need by far."""
MEMORY = 8 * 2**30
"""Bytes beyond what Python and its libraries take: weights are not read."""
_ERRORS: dict[str, type[AdagpError]] = {"DataError": DataError, "OptionError": OptionError}


def import_model(path: Path, shape: tuple[int, ...] | None, limits: Limits | None = None) -> Workload:
    """Return the workload of the model in `path`, for samples of `shape` where the file leaves sizes open."""
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
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise _ERRORS.get(answer["kind"], DataError)(answer["error"])
    return workload_from_json(answer["workload"])


def main(words: list[str]) -> None:
    """Read the model that a command line names, and write the answer as JSON to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is not part of the answer
    seconds, memory, name, *sizes = words
    path, shape = Path(name), tuple(map(int, sizes)) or None
    from adagp.tracing.exported_program import load_exported_program
    from adagp.tracing.onnx_model import load_onnx, prepare

    load = load_onnx if path.suffix == ".onnx" else load_exported_program
    try:
        if load is load_onnx:
            prepare()
        tempfile.gettempdir()  # torch asks for it, and it is found by writing a file
        Limits(int(seconds), used_memory() + int(memory), file_size=0).apply()
        answer = {"workload": load(path, shape).to_json()}
    except AdagpError as error:
        answer = {"kind": type(error).__name__, "error": str(error)}
    except MemoryError:
        answer = {"kind": "DataError", "error": f"{escaped(path)} cannot be read: it needs too much memory."}
    json.dump(answer, answers)
    answers.close()


if __name__ == "__main__":
    main(sys.argv[1:])
