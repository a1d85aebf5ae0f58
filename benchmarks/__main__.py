"""`make bench`: run all benchmarks, print their ratios, write them as JSON.

    python -m benchmarks [--quick] [--rounds N] [--threads N] [--busy] [--growth FILE] [--only TEXT] [--out FILE]

A ratio over its limit is marked; the exit code is 0 all the same, since a limit is a matter of the machine as well. With
`--growth` nothing else is measured, which takes a few minutes.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch

from adagp.core.memory import keep_freed_memory
from benchmarks import engine, feedback, tools
from benchmarks.allocator import kept_memory
from benchmarks.measure import Clock, Ratio
from benchmarks.memory import gp_memory
from benchmarks.rtl import cycles_against_model
from benchmarks.subjects import Subject

SUBJECTS = {
    Subject("vgg13", 128): (1.06, 1.04),
    Subject("vgg13", 32): (1.20, 1.12),
    Subject("resnet20", 128): (1.20, 1.12),
    Subject("mobilenet_v2", 128): (1.20, 1.12),
    Subject("eight_conv_vgg", 128): (1.20, 1.12),
    Subject("transformer", 128, 0.25): (1.20, 1.12),
    Subject("digits_cnn", 32): (None, None),
}
"""What is trained, and the limits of a GP batch and of a BP batch with a predictor."""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Run all benchmarks, print their ratios, write them as JSON.")
    parser.add_argument("--out", type=Path, default=Path("runs/bench.json"))
    parser.add_argument("--quick", action="store_true", help="seven rounds instead of 15, and a shorter whole run")
    parser.add_argument("--rounds", type=int, default=None, help="more rounds, for a ratio that is close to its limit")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads")
    parser.add_argument(
        "--busy", action="store_true", help="other work on this machine: one thread, the process's own time"
    )
    parser.add_argument("--growth", type=Path, default=None, help="draw how the cost grows into this file, and no more")
    parser.add_argument("--only", default="", help="only the groups whose name has this in it")
    arguments = parser.parse_args()
    if arguments.threads or arguments.busy:
        torch.set_num_threads(arguments.threads or 1)
    keep_freed_memory()  # as `adagp train` does, for all contenders
    rounds = arguments.rounds or (7 if arguments.quick else 15)
    clock = Clock(rounds, process=arguments.busy)
    if arguments.growth is not None:
        from benchmarks import growth

        growth.draw(arguments.growth, replace(clock, rounds=arguments.rounds or growth.ROUNDS))
        print(f"written: {arguments.growth}")
        return
    rows: list[Ratio] = []
    for name, group in _groups(clock, arguments.quick):
        if arguments.only in name:
            for row in group():
                rows.append(row)
                print(row.line(), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(f"written: {arguments.out}")


def _groups(clock: Clock, quick: bool) -> Iterator[tuple[str, Callable[[], list[Ratio]]]]:
    for subject, limits in SUBJECTS.items():
        yield subject.name, lambda subject=subject, limits=limits: engine.batches(subject, clock, *limits)  # type: ignore[misc]
    yield "whole run", lambda: [engine.whole_run(clock, 9, 6 if quick else 12)]
    for subject in list(SUBJECTS)[:-1]:
        yield f"memory {subject.name}", lambda subject=subject: [gp_memory(subject, 1.10)]  # type: ignore[misc]
    for subject in (Subject("resnet20", 128), Subject("mobilenet_v2", 128)):
        yield f"allocator {subject.name}", lambda subject=subject: kept_memory(subject, clock)  # type: ignore[misc]
    for subject in list(SUBJECTS)[:2]:
        yield f"parts {subject.name}", lambda subject=subject: [engine.parts(subject, clock, 4)]  # type: ignore[misc]
    yield "approximation", lambda: engine.approximation(clock)
    for threads in (1,) if clock.process else (1, 2):
        for subject in feedback.SUBJECTS:
            name = f"feedback {subject.name}, threads: {threads}"
            yield name, lambda subject=subject, threads=threads: feedback.feedback(subject, clock, threads)  # type: ignore[misc]
    yield "precision", lambda: engine.precision(clock)
    yield "compiled", lambda: engine.compiled(clock)
    yield "accelerator", lambda: tools.accelerator(clock)
    yield "rtl", lambda: [cycles_against_model()]
    yield "pipeline", lambda: tools.pipeline(clock)
    yield "command line", lambda: tools.command_line(clock.rounds)
    yield "report", lambda: [tools.long_report(clock)]
    yield "data", lambda: [_data_loading(clock)]


def _data_loading(clock: Clock) -> Ratio:
    """The quickest of the models that learn from 32x32 images sees its samples in GP batches, one after the other."""
    subject = Subject("resnet20", 128)
    seconds = clock.race({"forward and step": [subject.plain(backward=False)]}).seconds("forward and step")
    return tools.data_loading(clock, subject.batch / seconds, f"a GP batch of {subject.model}")


if __name__ == "__main__":
    main()
