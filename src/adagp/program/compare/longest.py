"""How long runs may be."""

from collections.abc import Callable
from dataclasses import replace

from adagp.errors import OptionError
from adagp.program.compare.methods import fitted_schedule
from adagp.program.run.config import TrainConfig

LONGEST = 1_000
"""A run may have so many times as many batches as backprop's; one that would have more costs next to nothing."""


def longest_run(
    budget: float, config: TrainConfig, cost: Callable[[TrainConfig], float], batches_per_epoch: int
) -> int:
    """Return how many batches a run may have that costs up to `budget`; one at least.

    The schedule is that of a run of this length. Where a longer run may be cheaper, since its schedule is another one, the
    answer is some length after which one batch more would cost too much. A budget that does not hold the warm-up is refused,
    and so is a method whose batches cost next to nothing.
    """
    assert config.batches is not None
    most = LONGEST * config.batches

    def fits(batches: int) -> bool:
        longer = replace(config, batches=batches)
        try:
            fitted_schedule(longer, batches_per_epoch)
        except OptionError:  # nothing is left after the warm-up: it must be longer
            return True
        return cost(longer) <= budget

    low, high = 1, 2
    while fits(high):
        if high > most:
            raise OptionError(f"its batches cost so little that {high:,} of them are not enough for equal cost.")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    fitted_schedule(
        replace(config, batches=low), batches_per_epoch
    )  # raises, if the budget does not even hold the warm-up
    return low
