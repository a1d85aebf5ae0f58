"""Timing contenders against each other: interleaved, so that a noisy machine disturbs all alike; medians over rounds."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

Run = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """`name` took `ratio` times as much as what it is measured against; `at_most` is the limit, if there is one.

    `detail` has the figures behind the ratio, in words.
    """

    name: str
    ratio: float
    at_most: float | None = None
    detail: str = ""

    def line(self) -> str:
        """Return the ratio as a line of a table."""
        limit = "" if self.at_most is None else f"at most {self.at_most:.3f}"
        mark = "" if self.at_most is None or self.ratio <= self.at_most else "  EXCEEDS"
        return f"{self.name:<66} {self.ratio:8.3f}  {limit:<14} {self.detail}{mark}"


@dataclass(frozen=True)
class Clock:
    """How time is taken: `rounds` rounds, by the wall's clock or, on a machine with other work, the process's own.

    The latter (`process`) leaves out waiting for the processor, so it means something with one thread only.
    """

    rounds: int = 15
    process: bool = False

    def now(self) -> float:
        """Return the time in seconds since some moment."""
        return time.process_time() if self.process else time.perf_counter()

    def seconds(self, contenders: Mapping[str, Run]) -> dict[str, float]:
        """Return the median seconds of each contender; all run once in each round, after one round to warm up."""
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for round_number in range(self.rounds + 1):
            for name, run in contenders.items():
                start = self.now()
                run()
                if round_number:
                    times[name].append(self.now() - start)
        return {name: median(values) for name, values in times.items()}
