"""A hang as an error."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 30
"""Seconds that an answer may take, whatever was given."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Fail what takes too long."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"not done after {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
