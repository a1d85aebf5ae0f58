"""How long runs may be: as many batches as fit into a cost, whatever the cost is of."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from adagp.core.plan import BACKPROP_ALL, Plan, Step
from adagp.errors import OptionError
from adagp.program.run.config import TrainConfig
from adagp.schedules import Layout, Schedule
from adagp.schedules.base import predicted_plan

LONGEST = 1_000
"""A run may have so many times as many batches as backprop's; one that would have more costs next to nothing."""


def steps_of(config: TrainConfig, batches_per_epoch: int) -> Iterator[Step]:
    """Yield the steps of a run that is measured in batches."""
    assert config.batches is not None
    return (Step(*divmod(number, batches_per_epoch)) for number in range(config.batches))


def fitted_schedule(config: TrainConfig, batches_per_epoch: int) -> Schedule:
    """Return the schedule of a run of this length."""
    return config.fit(batches_per_epoch).schedule(batches_per_epoch)


def planned_batches(
    config: TrainConfig, batches_per_epoch: int, layout: Layout, share: float | None = None
) -> Iterator[tuple[Plan, int]]:
    """Yield the plans of a run's batches in their order, with how many batches in a row each has.

    `share` is that of GP batches, if no schedule tells; their order is then not known.
    """
    assert config.batches is not None
    schedule = fitted_schedule(config, batches_per_epoch).resolve(layout)
    if share is not None:
        (source,) = schedule.sources
        predicted = round(share * config.batches)
        yield BACKPROP_ALL, config.batches - predicted
        yield predicted_plan(source), predicted
        return
    last, count = None, 0
    for plan in map(schedule.plan, steps_of(config, batches_per_epoch)):
        if last is not None and plan != last:
            yield last, count
            count = 0
        last, count = plan, count + 1
    if last is not None:
        yield last, count


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
