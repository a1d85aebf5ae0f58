"""Timing contenders against each other: interleaved, so that a noisy machine disturbs all alike; medians over rounds."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

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
    """The seconds that each of a contender's models took in each round."""

    times: Mapping[str, Sequence[Sequence[float]]]

    def seconds(self, name: str) -> float:
        """Return the median of a contender, which is the mean of those of its models."""
        return mean(median(times) for times in self.times[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median over the rounds of one contender's time divided by another's: a slow round is slow for both.

        The first models of both are compared with each other, and so are the second ones; the ratio is the mean of both.
        """
        ours, theirs = self.times[name], self.times[other]
        pairs = [(ours[place % len(ours)], theirs[place % len(theirs)]) for place in range(max(len(ours), len(theirs)))]
        return mean(_median_ratio(own, other_times) for own, other_times in pairs)

    def chance(self, name: str) -> float:
        """Return the same ratio for two models of one contender, which would be 1 if nothing were left to chance."""
        first, second = self.times[name]
        return _median_ratio(second, first)

    def milliseconds(self, name: str, other: str) -> str:
        """Return the medians behind a ratio, in words."""
        return f"{1000 * self.seconds(name):.1f} / {1000 * self.seconds(other):.1f} ms"


def _median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return median(own / other for own, other in zip(times, others, strict=True))


@dataclass(frozen=True)
class Clock:
    """How time is taken: `rounds` rounds, by the wall's clock or, on a machine with other work, the process's own.

    The latter (`process`) leaves out waiting for the CPU, so it means something with one thread only.
    """

    rounds: int = 15
    process: bool = False

    def now(self) -> float:
        """Return the time in seconds since some moment."""
        return time.process_time() if self.process else time.perf_counter()

    def race(self, contenders: Mapping[str, Sequence[Run]]) -> Race:
        """Run all models of all contenders once in each round, after one round to warm up.

        Each round begins with another contender, and every second round runs in reverse. Contenders that are named next to each
        other run next to each other, so that a short disturbance affects both. Give two models of each contender: the place of
        a model in memory changes its time by a few per cent.
        """
        most = max(len(models) for models in contenders.values())
        laps = [(name, place) for place in range(most) for name in contenders if place < len(contenders[name])]
        times: dict[str, list[list[float]]] = {name: [[] for _ in models] for name, models in contenders.items()}
        for round_number in range(self.rounds + 1):
            first = round_number % len(laps)
            order = laps[first:] + laps[:first]
            for name, place in order if round_number % 2 else reversed(order):
                run = contenders[name][place]
                start = self.now()
                run()
                if round_number:
                    times[name][place].append(self.now() - start)
        return Race(times)


def twice(make: Callable[[], Run]) -> list[Run]:
    """Return two models of a contender."""
    return [make(), make()]
