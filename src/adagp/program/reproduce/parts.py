"""Parts of experiments: one training run, one simulation, one timing each, done once and kept.

A part's result is a file of its own, written whole or not at all; where it exists, the part is finished. Its name has a
digest of all that decides the result, so a part with other options is another part. Experiments that need the same part
share it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adagp.core.files import write_atomically
from adagp.program.jobs import Job, Stop, never
from adagp.program.run.documents import AMOUNT, ANYTHING, Fields, Shape, TableOf, read_result, record_of
from adagp.program.run.folder import to_json

Work = Callable[["Part", "Workspace"], dict[str, Any] | None]
"""What does a part: returns the result as plain values, or None if it was stopped before the end."""

RESULTS_FORMAT = "0.1.0"
"""Part of every key. Not the program's version: a release must not discard days of training. Change it only if the same options
give other results than before, which discards all finished parts."""
READS_DATA = "reads_data"
"""The option of a part whose data set must be on disk."""


@dataclass(frozen=True)
class Part:
    """A call of `work` with `options`, done once. Two parts with the same key are one.

    `work` is a function of a module, so that other processes find it. `weight` is roughly its seconds at the quick budget.
    Parts of a lower `rank` run first, among those of the same rank the heavier ones. `shape` is that of the result, which is
    checked when it is read.
    """

    work: Work = field(compare=False)
    label: str = field(compare=False)
    options: Mapping[str, Any] = field(compare=False)
    weight: float = field(default=1.0, compare=False)
    shape: Shape = field(default=TableOf(ANYTHING), compare=False)
    rank: int = field(default=0, compare=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        name = self.work.__name__
        decides = json.dumps([name, dict(self.options), RESULTS_FORMAT], sort_keys=True)
        digest = hashlib.sha256(decides.encode()).hexdigest()[:10]
        object.__setattr__(self, "key", f"{name}-{self.label}-{digest}".replace("/", "_").replace(":", "_"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the shape, which cannot be pickled and is needed only where results are read."""
        return Part, (self.work, self.label, self.options, self.weight)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that must be on disk."""
        return (str(self.options["dataset"]),) if self.options.get(READS_DATA) else ()


@dataclass(frozen=True)
class Workspace:
    """Where parts are done: the folder of results, the data, the device; `stop()` returns whether to stop early."""

    out: Path
    data_dir: Path | None = None
    device: str = "cpu"
    stop: Stop = never

    def result_file(self, part: Part) -> Path:
        """Return the file that holds the part's result, once it is finished."""
        return self.out / "parts" / f"{part.key}.json"

    def run_folder(self, part: Part) -> Path:
        """Return the run folder of a training part."""
        return self.out / "runs" / part.key

    def finished(self, part: Part) -> bool:
        """Return whether the part has been done."""
        return self.result_file(part).is_file()

    def result(self, part: Part) -> dict[str, Any]:
        """Return the result of a finished part."""
        result: dict[str, Any] = read_result(self.result_file(part), record_of({"result": part.shape}))["result"]
        return result

    def seconds(self, part: Part) -> float:
        """Return the seconds that a finished part took; 0 if its file does not have them."""
        content = read_result(self.result_file(part), Fields({"seconds": AMOUNT}, ANYTHING))
        return float(content.get("seconds", 0.0))


def copy_result(part: Part, source: Workspace, target: Workspace) -> None:
    """Copy the result of a part that is finished in `source` and not yet in `target`; its run folder is not copied."""
    if source.finished(part) and not target.finished(part):
        target.result_file(part).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target.result_file(part), source.result_file(part).read_bytes())


def run_part(part: Part, workspace: Workspace) -> bool:
    """Do a part, unless it is finished already, and keep its result; return False if it was stopped before the end."""
    if workspace.finished(part):
        return True
    workspace.result_file(part).parent.mkdir(parents=True, exist_ok=True)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = part.work(part, workspace)
    if result is None:
        return False
    content = {
        "part": part.key,
        "options": dict(part.options),
        "seconds": round(time.perf_counter() - begin, 3),
        "processor_seconds": round(time.process_time() - begin_cpu, 3),
        "result": result,
    }
    write_atomically(workspace.result_file(part), (to_json(content, indent=1) + "\n").encode())
    return True


@dataclass(frozen=True)
class _PartWork:
    """Does a part in a process that has its own way to be stopped."""

    part: Part
    workspace: Workspace

    def __call__(self, stop: Stop) -> bool:
        return run_part(self.part, replace(self.workspace, stop=stop))


def part_job(part: Part, workspace: Workspace) -> Job:
    """Return a part as a job for a process of its own."""
    work = _PartWork(part, replace(workspace, stop=never))  # a signal handler's flag cannot be pickled
    return Job(part.key, work, workspace.result_file(part), workspace.out / "logs" / f"{part.key}.log")
