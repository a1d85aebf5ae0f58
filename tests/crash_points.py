"""Kills a command of adagp before each of its file operations, and sees what recovers.

`python -m tests.crash_points SCENARIO [SAMPLE]`

A process that is killed leaves what the system has of its files, whatever it still had in mind. So the command is run
once, and before each of its file operations the folder is copied: the copies are what a kill at that point would leave.
Where a file is about to get its name, a kill in the middle of writing it is a further one: half of the file under its
temporary name; where something was appended, half of that. What a user would do next is then done in each copy. All are
forks of one process, in which everything is imported already.

Jobs of `compare` and `reproduce` are done in the process itself, so that every operation of theirs is a point as well;
that real processes of theirs die with their parent is tested elsewhere. With SAMPLE, only the first point, the last one and so
many others, chosen by a fixed seed, are tried. Prints one JSON document: what became of each point.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer.main

import adagp.cli
import adagp.program.compare.costs
import adagp.program.compare.work
import adagp.program.compare.workflow
import adagp.program.reproduce.experiment
import adagp.program.reproduce.study
import adagp.program.train.session  # now, not in each fork
from adagp.core.files import TEMPORARY
from adagp.program.figures.style import subplots
from adagp.program.jobs import Job, JobFailure, JobObserver, Stop, never
from adagp.program.reproduce.experiment import EXPERIMENTS, Conclusion, Experiment, Part, Workspace
from adagp.program.reproduce.training import all_parts, group
from adagp.program.reproduce.verdict import HOLDS, Verdict
from adagp.program.run.folder import LOCK
from adagp.program.train.checkpoint import digest_of

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree")
TINY = ("--width", "0.25", "--batch-size", "700")
TRAIN = ("train", *TINY, "--threads", "1", "--epochs", "2", "--warmup", "1", "--ratio", "1:1", "--out", "run")
COMPARE = ("compare", "--methods", "bp,skip@1:1", "--seeds", "1", "--batches", "4", "--warmup-batches", "1", *TINY)
ALIGNED = ("--large-batch", "700", "--points", "1", "--rounds", "1", "--jobs", "1", "--out", "run")
TINY_EXPERIMENT = "two-tiny-parts"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "force": (*TRAIN, "--seed", "1", "--force"),
    "compare": (*COMPARE, *ALIGNED),
    "reproduce": ("reproduce", TINY_EXPERIMENT, "--jobs", "1", "--out", "run"),
}


def run_here(
    jobs: Sequence[Job], at_once: int, observer: JobObserver, stop: Stop = never, *, fresh: bool = False
) -> list[JobFailure]:
    """Do the jobs one after the other in this process."""
    for job in jobs:
        if not job.done:
            job.work(stop)
        observer.on_end(job, None)
    return []


def count_up(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return a result at once."""
    return {"number": part.options["number"] + 1}


def tiny_experiment() -> Experiment:
    """Return an experiment of one training run and one computed part, and a verdict that depends on both."""
    runs = group(1, epochs=1, batch_size=700, width=0.25, method="bp")
    counted = Part(count_up, "one", {"number": 1})

    def conclude(budget: str, workspace: Workspace) -> Conclusion:
        accuracy, number = runs.mean(workspace), workspace.result(counted)["number"]
        verdict = Verdict("all", "measured", HOLDS, f"{accuracy} {number}")
        return Conclusion([{"accuracy": accuracy}], [verdict], lambda: subplots(1, 1, (1, 1))[0])

    times = dict.fromkeys(("quick", "standard", "full"), 0.1)
    return Experiment(TINY_EXPERIMENT, "nothing", times, lambda budget: (*all_parts([runs]), counted), conclude)


def prepare() -> None:
    """Change this process so that commands do all in it, and quickly: what is left out writes nothing that is read again."""
    torch.set_num_threads(1)
    EXPERIMENTS.add(TINY_EXPERIMENT, tiny_experiment())
    command = typer.main.get_command(adagp.cli.make_app())
    changes: dict[Any, dict[str, Any]] = {
        adagp.cli: {"make_app": lambda words: command},
        adagp.program.compare.work: {"run_jobs": run_here},
        adagp.program.compare.workflow: {"draw_pareto": lambda document, *more: []},
        adagp.program.compare.costs: {
            "calibrate": lambda configs, *more: {name: {"bp": 0.1, "gp": 0.05, "data": 0.001} for name in configs},
        },
        adagp.program.reproduce.study: {"run_jobs": run_here},
        adagp.program.reproduce.experiment: {"save": lambda figure, path: path.write_bytes(b"")},
        os: {"fsync": lambda file: None},
    }
    for module, names in changes.items():
        for name, value in names.items():
            setattr(module, name, value)


class Copies:
    """A folder as it was before each file operation of this process, below `place`; equal ones once."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self.place = folder, place
        self.known: set[str] = set()
        self.points = 0
        self.busy = False
        self.appended: tuple[Path, int] | None = None
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.busy or not (event in CHANGES or _opens_to_write(event, arguments)):
            return
        self.busy = True
        self.points += 1
        if self.appended is not None:
            self._keep({self.appended[0]: (self.appended[1] + _size(self.appended[0])) // 2})
        self.appended = None
        self._keep({})
        if event == "os.rename":
            halves = [path for path in self.folder.rglob(f".*{TEMPORARY}") if path.is_file()]
            self._keep({path: _size(path) // 2 for path in halves})
        if event == "open" and arguments[2] & os.O_APPEND:
            path = self.folder / str(arguments[0])
            self.appended = (path, _size(path))
        self.busy = False

    def _keep(self, cut: Mapping[Path, int]) -> None:
        """Copy the folder, with some files cut to some sizes."""
        contents = {path.relative_to(self.folder): path for path in sorted(self.folder.rglob("*"))}
        digest = hashlib.sha256(str({str(path): size for path, size in cut.items()}).encode())
        for name, path in contents.items():
            digest.update(f"{name}".encode() + (path.read_bytes() if path.is_file() and name.name != LOCK else b""))
        if digest.hexdigest() in self.known:
            return
        self.known.add(digest.hexdigest())
        copy = self.place / f"{self.points:03}{'-cut' if cut else ''}"
        shutil.copytree(self.folder, copy)
        for path, size in cut.items():
            os.truncate(copy / path.relative_to(self.folder), size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _opens_to_write(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open" or not isinstance(arguments[2], int) or str(arguments[0]).startswith("/dev/"):
        return False
    return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def ended(folder: Path, words: Sequence[str], copies: Path | None = None) -> tuple[int, str]:
    """Run a command in `folder` in a fork; return its exit code, negative for a signal, and what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            said = file.read().decode(errors="replace")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
    code: Any = 1
    with contextlib.suppress(BaseException):
        os.chdir(folder)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        try:
            kept = None if copies is None else Copies(folder, copies)
            with contextlib.redirect_stdout(io.StringIO()):
                adagp.cli.main(words)
        except SystemExit as exit_:
            code = exit_.code
            if kept is not None:
                kept.busy = True
                (kept.place.parent / "points").write_text(str(kept.points))
    os._exit(code if isinstance(code, int) else 1)


def result(folder: Path) -> str:
    """Return a digest of what the command is for, without times."""
    weights = {str(path): torch.load(path, weights_only=True) for path in sorted(folder.rglob("model.pt"))}
    tables = {str(path): path.read_text("utf-8") for path in sorted(folder.rglob("verdicts.csv"))}
    return digest_of(
        [{path.removeprefix(str(folder)): one for path, one in table.items()} for table in (weights, tables)]
    )


def recoveries(scenario: str, folder: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what a user may do after the crash: to resume or repeat it, and for a run also to force it."""
    words = SCENARIOS[scenario]
    if scenario not in ("train", "force"):
        yield "same", words
        return
    begun = (folder / "run" / "config.json").is_file()
    same = [word for word in words if word != "--force"]
    yield ("resume", ("train", "--resume", "run", "--threads", "1")) if begun else ("same", same)
    if begun:  # without a run, to force it is the same
        yield "force", [*same, "--force"]


def chosen(points: list[Path], sample: int | None) -> list[Path]:
    """Return the first and the last of `points`, and `sample` of the others: all, if it is None."""
    inner = points[1:-1]
    return points if sample is None else [points[0], *random.Random(0).sample(inner, sample), points[-1]]


def examine(scenario: str, place: Path, sample: int | None) -> dict[str, Any]:
    """Return the result of the whole command, and of each point how it recovered and to which result."""
    folder, copies = place / "whole", place / "copies"
    folder.mkdir()
    copies.mkdir()
    if scenario == "force":
        assert ended(folder, TRAIN)[0] == 0
    before = result(folder)
    code, said = ended(folder, SCENARIOS[scenario], copies)
    assert code == 0, said
    states = []
    for copy in chosen(sorted(copies.iterdir()), sample):
        for way, words in recoveries(scenario, copy):
            attempt = Path(shutil.copytree(copy, place / "attempt"))
            code, said = ended(attempt, words)
            states.append(
                {"point": copy.name, "way": way, "code": code, "result": result(attempt), "said": said[-500:]}
            )
            shutil.rmtree(attempt)
    points = int((place / "points").read_text())
    return {"before": before, "expected": result(folder), "points": points, "states": states}


def start(scenario: str, sample: int | None) -> dict[str, Any]:
    """Examine a scenario in a folder of its own, in memory if there is one."""
    prepare()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        warm = Path(place) / "warm"
        warm.mkdir()
        os.chdir(warm)
        quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with quiet[0], quiet[1], contextlib.suppress(SystemExit):
            adagp.cli.main(SCENARIOS[scenario])  # all that is imported on the way is there in each fork
        return examine(scenario, Path(place), sample)


if __name__ == "__main__":
    json.dump(start(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None), sys.stdout)
