"""Kills processes of real runs at random moments: `python -m tests.program.distributed.kills 20 [data ...]`. Reports outcomes.

A run is disturbed by SIGKILL to one of its processes, at a moment drawn from the whole length of the run, its start included;
checkpoints are in the making all the time. All processes must end by themselves, and to continue the run, or to begin it again
where nothing had begun, must lead to the weights of the undisturbed run, bit by bit.
"""

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.conftest import no_garbage
from tests.program.distributed.conftest import NETS, OPTIONS, Job, free_port, run_forks, work

from adagp.program.run import RunFolder

KINDS = {
    "data": 2,
    "fsdp": 2,
    "pipeline:gpipe": 2,
    "pipeline:dapple": 3,
    "pipeline:interleaved": 2,
    "pipeline:zb-v": 2,
    "pipeline:chimera": 4,
    "data=2,pipeline=2": 4,
    "fsdp=2,pipeline=2": 4,
}
"""Ways to be parallel, and the processes of each."""
LONGEST = 30.0
"""Seconds after a kill in which a run must have ended."""
LENGTH = {"epochs": 5, "check_every": 3}

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kill:
    """What became of one run: killed `after` so many seconds, with so many epochs done (-1: before it had begun)."""

    kind: str
    after: float
    epochs: int
    ended: float
    equal: bool


def jobs(kind: str, folder: Path, *, resume: bool = False) -> list[tuple[Job]]:
    """Return the parts of the processes of a run."""
    port, size = free_port(), KINDS[kind]
    options = OPTIONS | LENGTH | {"parallel": kind}
    more = {"resume": resume, "checkpoint_seconds": 0.0}
    return [(Job(rank, size, port, options, folder, **more),) for rank in range(size)]  # type: ignore[arg-type]


def finished(kind: str, folder: Path) -> Weights:
    """Run to the end what is in `folder`, and return the weights."""
    arguments = jobs(kind, folder, resume=RunFolder(folder).begun)
    assert run_forks(work, arguments) == [0] * len(arguments)
    found: Weights = torch.load(folder / "model.pt", weights_only=True)
    return found


def disturb(kind: str, folder: Path, after: float, victim: int) -> tuple[float, int]:
    """Begin a run and kill one of its processes; return how long the others went on, and the epochs that were done."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=one, daemon=True) for one in jobs(kind, folder)]
    with no_garbage():
        for process in processes:
            process.start()
    time.sleep(after)
    processes[victim].kill()
    start = time.monotonic()
    for process in processes:
        process.join(10 * LONGEST)
    ended = time.monotonic() - start
    for process in processes:
        process.kill()
    return ended, len(RunFolder(folder).rows()) if RunFolder(folder).begun else -1


def kill_some(count: int, kinds: Sequence[str] = tuple(KINDS), seed: int = 0) -> Iterator[Kill]:
    """Disturb `count` runs, of the `kinds` in turn, in the working folder, and tell what became of each."""
    Path("nets.py").write_text(NETS, "utf-8")
    draw = random.Random(seed)
    whole: dict[str, tuple[float, Weights]] = {}
    for number in range(count):
        kind = kinds[number % len(kinds)]
        if kind not in whole:
            start = time.monotonic()
            weights = finished(kind, Path(f"whole-{number}").absolute())
            whole[kind] = time.monotonic() - start, weights
        seconds, expected = whole[kind]
        folder, after = Path(f"killed-{number}").absolute(), draw.uniform(0, 0.9 * seconds)
        ended, epochs = disturb(kind, folder, after, draw.randrange(KINDS[kind]))
        found = finished(kind, folder)
        equal = all(torch.equal(found[name], one) for name, one in expected.items())
        yield Kill(kind, after, epochs, ended, equal)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        sys.path.insert(0, place)
        torch.set_num_threads(1)
        results = []
        for result in kill_some(int(sys.argv[1]), sys.argv[2:] or tuple(KINDS)):
            sys.stdout.write(f"{result}\n")
            sys.stdout.flush()
            results.append(result)
        os.chdir("/")
    slowest, same = max(one.ended for one in results), sum(one.equal for one in results)
    sys.stdout.write(
        f"{len(results)} kills: {same} end with equal weights; the slowest run ended after {slowest:.1f} s\n"
    )
    sys.exit(not all(one.equal and one.ended <= LONGEST for one in results))
