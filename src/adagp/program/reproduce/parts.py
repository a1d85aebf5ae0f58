"""Parts of experiments: one training run, one simulation, one timing each, done once and kept.

A part's result is a file of its own, written whole or not at all; where it exists, the part is finished. Its name has a
digest of all that decides the result, so a part whose options or whose program changed is another part. Experiments
that need the same part share it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adagp._version import __version__
from adagp.core.files import write_atomically
from adagp.program.jobs import Job, Stop, never
from adagp.program.run.documents import ANYTHING, Shape, TableOf, read_result, record_of
from adagp.program.run.folder import to_json

Work = Callable[["Part", "Place"], dict[str, Any] | None]
"""What does a part: returns the result as plain values, or None if it was stopped before the end."""

READS_DATA = "reads_data"
"""The option of a part that says that its data set must be on disk."""


@dataclass(frozen=True)
class Part:
    """Something to be done once: `work` with `options`. Two parts with the same key are one.

    `work` is a function of a module, so that other processes find it. `weight` is roughly its seconds at the quick budget;
    it decides the order only. `shape` is that of the result, which is checked when it is read: anybody may have written it.
    """

    work: Work = field(compare=False)
    label: str = field(compare=False)
    options: Mapping[str, Any] = field(compare=False)
    weight: float = field(default=1.0, compare=False)
    shape: Shape = field(default=TableOf(ANYTHING), compare=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        name = self.work.__name__
        decides = json.dumps([name, dict(self.options), __version__], sort_keys=True)
        digest = hashlib.sha256(decides.encode()).hexdigest()[:10]
        object.__setattr__(self, "key", f"{name}-{self.label}-{digest}".replace("/", "_").replace(":", "_"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the shape, which cannot, and which is needed where results are read."""
        return Part, (self.work, self.label, self.options, self.weight)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that must be on disk."""
        return (str(self.options["dataset"]),) if self.options.get(READS_DATA) else ()


@dataclass(frozen=True)
class Place:
    """Where parts are done: the folder of results, the data, the device; and whether somebody asked to stop."""

    out: Path
    data_dir: Path | None = None
    device: str = "cpu"
    stop: Stop = never

    def marker(self, part: Part) -> Path:
        """Return the file that holds the part's result, once it is finished."""
        return self.out / "parts" / f"{part.key}.json"

    def run_folder(self, part: Part) -> Path:
        """Return the run folder of a training part."""
        return self.out / "runs" / part.key

    def finished(self, part: Part) -> bool:
        """Tell whether the part has been done."""
        return self.marker(part).is_file()

    def result(self, part: Part) -> dict[str, Any]:
        """Return the result of a finished part."""
        result: dict[str, Any] = read_result(self.marker(part), record_of({"result": part.shape}))["result"]
        return result


def carry_out(part: Part, place: Place) -> bool:
    """Do a part, unless it is finished already, and keep its result; return False if it was stopped before the end."""
    if place.finished(part):
        return True
    place.marker(part).parent.mkdir(parents=True, exist_ok=True)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = part.work(part, place)
    if result is None:
        return False
    content = {
        "part": part.key,
        "options": dict(part.options),
        "seconds": round(time.perf_counter() - begin, 3),
        "processor_seconds": round(time.process_time() - begin_cpu, 3),
        "result": result,
    }
    write_atomically(place.marker(part), (to_json(content, indent=1) + "\n").encode())
    return True


@dataclass(frozen=True)
class _PartWork:
    """Does a part in a process that is asked to stop in its own way."""

    part: Part
    place: Place

    def __call__(self, stop: Stop) -> bool:
        return carry_out(self.part, replace(self.place, stop=stop))


def part_job(part: Part, place: Place) -> Job:
    """Return a part as a job for a process of its own."""
    work = _PartWork(part, replace(place, stop=never))  # the way to ask for a stop cannot travel
    return Job(part.key, work, place.marker(part), place.out / "logs" / f"{part.key}.log")
