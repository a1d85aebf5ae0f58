"""Kills a command of adagp before its file operations, and sees what recovers: `python -m tests.crash_points SCENARIO [EVERY]`.

Each operation is a point; with EVERY, every so many of them.

The command is run once to warm up; each attempt is a fork of that process in a folder of its own. Jobs of `compare` and
`reproduce` are done in the process itself, so that every operation of theirs is a point as well; that real processes of
theirs die with their parent is tested elsewhere. Prints one JSON document: what became of each point.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import adagp.compare.workflow
import adagp.figures.curves
import adagp.reproduce.experiment
import adagp.reproduce.study
import adagp.train.session  # now, not in each fork
from adagp.cli import main
from adagp.jobs import Job, JobFailure, JobObserver, Stop, never
from adagp.run import RunFolder
from adagp.train.checkpoint import digest_of

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
TINY = ("--width", "0.25", "--batch-size", "400", "--threads", "1")
TRAIN = ("train", *TINY, "--epochs", "2", "--warmup", "1", "--ratio", "1:1", "--out", "run")
COMPARE = (
    "compare",
    "--methods",
    "bp,skip@1:1",
    "--seeds",
    "1",
    "--regimes",
    "batches",
    "--large-batch",
    "0",
    "--jobs",
    "1",
)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "force": (*TRAIN, "--seed", "1", "--force"),
    "compare": (*COMPARE, *TINY[:4], "--epochs", "1", "--warmup-batches", "1", "--out", "run"),
    "reproduce": ("reproduce", "adagp-figure20", "--jobs", "1", "--out", "run"),
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


def kill_at(point: int) -> None:
    """Let this process be killed before its file operation number `point`."""
    done = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if event in CHANGES or (writes and not str(arguments[0]).startswith("/dev/")):
            done += 1
            if done == point:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def ended(folder: Path, words: Sequence[str], point: int | None = None) -> int:
    """Run a command in `folder` in a fork; return its exit code, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code: Any = 1
    if point is not None:
        kill_at(point)
    with contextlib.suppress(BaseException):
        try:
            main(words)
        except SystemExit as exit_:
            code = exit_.code
    os._exit(code if isinstance(code, int) else 1)


def result(folder: Path) -> str:
    """Return a digest of what the command is for, without times."""
    weights = {str(path): torch.load(path, weights_only=True) for path in sorted(folder.rglob("model.pt"))}
    tables = {str(path): path.read_text("utf-8") for path in sorted(folder.rglob("verdicts.csv"))}
    return digest_of(
        [{path.removeprefix(str(folder)): one for path, one in table.items()} for table in (weights, tables)]
    )


def recover(scenario: str, folder: Path) -> tuple[str, int]:
    """Do what a user would do after the crash; return what it was, and its exit code."""
    run, words = folder / "run", SCENARIOS[scenario]
    if scenario in ("train", "force") and (run / "config.json").is_file():
        return "resume", ended(folder, ("train", "--resume", "run", "--threads", "1"))
    without = [word for word in words if word != "--force"]
    return "same", ended(folder, without)


def examine(scenario: str, fresh: Callable[[], Path], every: int) -> dict[str, Any]:
    """Return the results of whole commands, and of each point how it recovered and to which result."""
    whole = fresh()
    before = result(whole)
    assert ended(whole, SCENARIOS[scenario]) == 0, (whole / "output").read_text()
    expected = result(whole)
    points = []
    for point in range(1, 1000, every):
        folder = fresh()
        code = ended(folder, SCENARIOS[scenario], point)
        if code == 0:
            break
        assert code == -signal.SIGKILL, (folder / "output").read_text()
        forced = shutil.copytree(folder, folder.with_name(f"{folder.name}-forced")) if point % 5 == 0 else None
        way, code = recover(scenario, folder)
        output = (folder / "output").read_text("utf-8")
        points.append({"way": way, "code": code, "result": result(folder), "output": output[-500:]})
        shutil.rmtree(folder)
        if forced is not None and scenario in ("train", "force"):
            code = ended(forced, (*SCENARIOS[scenario], "--force"))
            points.append({"way": "force", "code": code, "result": result(forced), "output": ""})
            shutil.rmtree(forced)
    return {"before": before, "expected": expected, "points": points}


def start(scenario: str, every: int) -> dict[str, Any]:
    """Examine a scenario in folders of its own."""
    torch.set_num_threads(1)
    for module in (adagp.compare.workflow, adagp.reproduce.study):
        setattr(module, "run_jobs", run_here)  # noqa: B010  # behind the type checker's back
    # Drawing takes most of the time, and nothing depends on pictures.
    setattr(adagp.compare.workflow, "draw_pareto", lambda document, *more: [])  # noqa: B010
    setattr(adagp.reproduce.experiment, "save", lambda figure, path: path.write_bytes(b""))  # noqa: B010
    with tempfile.TemporaryDirectory() as place:
        old, warm = Path(place) / "old", Path(place) / "warm"
        old.mkdir()
        warm.mkdir()
        os.chdir(warm)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main(SCENARIOS[scenario])  # all that is imported on the way is there in each fork
        if scenario == "force":
            assert ended(old, TRAIN) == 0
            assert RunFolder(old / "run").begun

        def fresh() -> Path:
            folder = Path(tempfile.mkdtemp(dir=place))
            return shutil.copytree(old, folder, dirs_exist_ok=True)

        return examine(scenario, fresh, every)


if __name__ == "__main__":
    json.dump(start(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1), sys.stdout)
