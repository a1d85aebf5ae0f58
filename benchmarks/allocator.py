"""What it is worth to keep freed memory (`adagp.core.memory`): the same plain batches in processes with and without."""

import subprocess
import sys
from statistics import median

import torch

from adagp.core.memory import keep_freed_memory
from adagp.program.train.session import peak_memory
from benchmarks.measure import Clock, Ratio
from benchmarks.subjects import Subject, after

PAIRS = 3
WARMUP = 8
"""Batches until the heap has found its shape."""


def kept_memory(subject: Subject, clock: Clock) -> list[Ratio]:
    """Return time and peak memory of plain BP in processes that keep freed memory, over those that do not; in pairs."""
    pairs = [[_run(subject, kind, clock) for kind in ("keep", "leave")] for _ in range(PAIRS)]
    seconds = median(kept[0] / left[0] for kept, left in pairs)
    memory = median(kept[1] / left[1] for kept, left in pairs)
    return [
        Ratio(f"{subject.name}: plain bp with freed memory kept / given back", seconds),
        Ratio(f"{subject.name}: peak memory with freed memory kept / given back", memory),
    ]


def _run(subject: Subject, kind: str, clock: Clock) -> tuple[float, float]:
    arguments = [subject.model, str(subject.batch), str(subject.width), kind, str(torch.get_num_threads())]
    arguments += [str(max(3, clock.rounds // 3)), str(clock.process)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.allocator", *arguments], capture_output=True, text=True, check=True
    )
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def main() -> None:
    """Be the process that is measured: print the median seconds of a batch, and the peak memory in bytes."""
    model, batch, width, kind, threads, rounds, process = sys.argv[1:]
    torch.set_num_threads(int(threads))
    if kind == "keep" and not keep_freed_memory():
        raise SystemExit("this C library does not keep freed memory, or is told not to by the environment.")
    run = after(Subject(model, int(batch), float(width)).plain(backward=True), WARMUP)
    seconds = Clock(int(rounds), process == "True").race({"bp": [run]}).seconds("bp")
    print(seconds, peak_memory(torch.device("cpu")))


if __name__ == "__main__":
    main()
