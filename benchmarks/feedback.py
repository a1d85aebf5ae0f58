"""What feedback's batches cost: learning in batches by backprop, and GP batches, against plain PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from adagp.core.methods import find_method
from adagp.papers.feedback.source import FeedbackSource
from adagp.schedules import Ladder, Rung, WarmUp
from benchmarks.measure import Clock, Ratio, Run, twice
from benchmarks.subjects import Subject, after

SUBJECTS = (
    *(Subject(name, 128) for name in ("six_conv_vgg", "resnet20", "vgg13")),
    *(Subject(name, 512) for name in ("six_conv_vgg_gap", "resnet20")),
)
LEARNING, PREDICTING, BEYOND_FORWARD = 1.05, 0.42, 1.25
"""Limits: a BP batch and a GP batch over a plain BP batch, and a GP batch over a forward pass without autograd and a step."""
LARGE, LARGE_LEARNING, LARGE_PREDICTING = 512, 1.06, 0.37
"""The first two limits for batches of `LARGE` samples, of which the mixed samples are only a few."""
WARMUP = 4
"""Batches of backprop before anything is timed: two epochs of a `Subject`."""
SPARING = {"correct_every": 4}
"""Options with which learning is meant to be within its limit; GP batches are the same with all of these."""


def feedback(subject: Subject, clock: Clock, threads: int) -> list[Ratio]:
    """Return the ratios of one model with `threads` threads: learning by default and sparingly, and a GP batch.

    With `SPARING`, not every BP batch updates everything, so a whole cycle of BP batches is timed.
    """
    turns = SPARING["correct_every"]
    with _threads(threads):
        race = clock.race(
            {
                "plain": twice(lambda: repeated(subject.plain(backward=True), turns)),
                "bp": twice(lambda: repeated(_under(subject, predicting=False), turns)),
                "sparing bp": twice(lambda: repeated(_under(subject, predicting=False, **SPARING), turns)),
                "least": twice(lambda: repeated(subject.plain(backward=False), turns)),
                "gp": twice(lambda: repeated(_under(subject, predicting=True), turns)),
            }
        )
    large = subject.batch >= LARGE
    learning, predicting = (LARGE_LEARNING, LARGE_PREDICTING) if large else (LEARNING, PREDICTING)
    count = "one thread" if threads == 1 else f"{threads} threads"
    rows = (
        ("bp", "plain", "feedback's bp / plain bp", learning),
        ("sparing bp", "plain", f"feedback's bp with {_in_words(SPARING)} / plain bp", learning),
        ("gp", "plain", "feedback's gp / plain bp", predicting),
        ("gp", "least", "feedback's gp / forward and step", BEYOND_FORWARD),
    )
    return [
        Ratio(f"{subject.name}, {count}: {title}", race.ratio(name, other), limit, race.milliseconds(name, other))
        for name, other, title, limit in rows
    ]


def _under(subject: Subject, *, predicting: bool, **options: int) -> Run:
    schedule = WarmUp(Ladder((Rung(1, 0),), "feedback"), epochs=WARMUP // 2 if predicting else 10**9)
    source = FeedbackSource(**{**find_method("feedback").defaults, **options})
    return after(subject.under(schedule, sources={"feedback": source}), WARMUP)


def _in_words(options: dict[str, int]) -> str:
    return ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())


def repeated(run: Run, times: int) -> Run:
    """Return `times` batches in a row as one run."""

    def several() -> None:
        for _ in range(times):
            run()

    return several


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
