"""What joins two chips."""

from dataclasses import dataclass
from math import inf, isfinite

from adagp.errors import OptionError


@dataclass(frozen=True)
class Link:
    """What joins two devices: bytes per second in each direction, and seconds before the first of them arrives."""

    bandwidth: float = inf
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise OptionError(
                f"a link of {self.bandwidth / 1e9:g} gigabytes per second carries nothing; give more than 0."
            )
        if not (self.latency >= 0 and isfinite(self.latency)):
            raise OptionError(f"a link's latency is {self.latency * 1e6:g} microseconds; it must be 0 or more.")
