"""Timing contenders against each other: interleaved, so that a noisy machine disturbs all alike; medians over rounds."""

import time
from collections.abc import Callable, Mapping, Sequence
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
class Race:
    """The seconds that each contender took in each round."""

    times: Mapping[str, Sequence[float]]

    def seconds(self, name: str) -> float:
        """Return the median of a contender."""
        return median(self.times[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median over the rounds of one contender's time over another's: what slows a round, slows both."""
        return median(one / two for one, two in zip(self.times[name], self.times[other], strict=True))

    def milliseconds(self, name: str, other: str) -> str:
        """Return the medians behind a ratio, in words."""
        return f"{1000 * self.seconds(name):.1f} / {1000 * self.seconds(other):.1f} ms"


@dataclass(frozen=True)
class Clock:
    """How time is taken: `rounds` rounds, by the wall's clock or, on a machine with other work, the process's own.

    The latter (`process`) leaves out waiting for the processor, so it means something with one thread only.
    """

    rounds: int = 21
    process: bool = False

    def now(self) -> float:
        """Return the time in seconds since some moment."""
        return time.process_time() if self.process else time.perf_counter()

    def race(self, contenders: Mapping[str, Run]) -> Race:
        """Run all contenders once in each round, after one round to warm up. Each round begins with another one."""
        names = list(contenders)
        times: dict[str, list[float]] = {name: [] for name in names}
        for round_number in range(self.rounds + 1):
            first = round_number % len(names)
            for name in names[first:] + names[:first]:
                start = self.now()
                contenders[name]()
                if round_number:
                    times[name].append(self.now() - start)
        return Race(times)
