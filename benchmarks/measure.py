"""Timing contenders against each other: interleaved, so that a noisy machine disturbs all alike; medians over rounds."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Ratio:
    """`name` took `ratio` times as long as what it is measured against; `at_most` is the limit, if there is one."""

    name: str
    ratio: float
    at_most: float | None = None


def seconds(contenders: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Return the median seconds of each contender; all run once in each round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if round_number:
                times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}
