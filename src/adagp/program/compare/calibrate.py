"""What a batch of each kind costs a method in seconds, measured.

All methods are timed in one process, in turns: a round times one batch by backprop and one GP batch of each method, so that
whatever disturbs the machine disturbs them all. Medians over the rounds are what counts; where a source does something in one
of so many batches by backprop only, the mean of the medians of these batches.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from statistics import fmean, median
from typing import Any

from adagp.core.methods import batch_variation
from adagp.core.plan import Phase, Step
from adagp.program.compare.methods import fitted_schedule, steps_of
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import Task
from adagp.program.train.loop import to_device
from adagp.program.train.session import Session
from adagp.schedules import Schedule

WARM = 3
"""Batches by backprop before anything is timed: they fill caches, and give the sources something to go by."""
Costs = dict[str, float]
"""Seconds of a batch by backprop (`bp`), of a GP batch (`gp`, if there are any), and of fetching its data (`data`)."""


def calibrate(
    configs: Mapping[str, TrainConfig], task: Task, rounds: int, tell: Callable[[], None] = lambda: None
) -> dict[str, Costs]:
    """Return the median costs of each method; `tell` is called after each round."""
    timers = {name: _Timer(config, task) for name, config in configs.items()}
    for timer in timers.values():
        for _ in range(WARM):
            timer.time(timer.places[0])
    cycles = {name: batch_variation(config.method, config.method_options).cycle for name, config in configs.items()}
    taken: dict[str, defaultdict[str, list[float]]] = {name: defaultdict(list) for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            for place in timer.places:
                for kind, seconds in timer.time(place).items():
                    taken[name][kind].append(seconds)
        tell()
    return {
        name: {kind: _typical(values, cycles[name] if kind == "bp" else 1) for kind, values in kinds.items()}
        for name, kinds in taken.items()
    }


def _typical(values: Sequence[float], cycle: int) -> float:
    """Return the median of values that come in cycles: the mean over a cycle's places of each place's own median."""
    return fmean(median(values[place::cycle]) for place in range(min(cycle, len(values))))


class _Timer:
    """One method's training, of which single batches are timed: the batch stands where the schedule has its phase."""

    def __init__(self, config: TrainConfig, task: Task) -> None:
        # The guard has its say, but an untrained predictor shall not send the GP batch to backprop.
        self.session = Session(replace(config, guard_limit=1e30), task=task, threads=1)
        self.task = task
        self._batches = _endless(task)
        trainer = self.session.trainer
        self.places = _places(trainer.schedule, self.session.config, task.batches_per_epoch)

    def time(self, place: Step) -> Costs:
        """Train one batch as if it stood at `place`; return its seconds and those of its data."""
        trainer = self.session.trainer
        before = time.perf_counter()
        inputs, targets = (to_device(one, self.session.device) for one in next(self._batches))
        start = time.perf_counter()
        trainer.move_to(place)
        result = trainer.step(inputs, targets, self.task.loss)
        end = time.perf_counter()
        return {"gp" if result.phase is Phase.GP else "bp": end - start, "data": start - before}


def _endless(task: Task) -> Iterator[tuple[Any, Any]]:
    for epoch in count():
        yield from task.batches(epoch)


def _places(schedule: Schedule, config: TrainConfig, batches_per_epoch: int) -> list[Step]:
    """Return the first steps by backprop (a warm-up batch costs the same) and of Phase GP, as far as the run has them.

    A schedule that adapts decides by itself what comes: two batches a round, whatever they are.
    """
    if schedule.adapts:
        return [Step(config.epochs - 1, 0)] * 2
    steps = steps_of(config, batches_per_epoch)
    first: dict[bool, Step] = {}
    for step in steps:
        first.setdefault(schedule.phase(step) is Phase.GP, step)
        if len(first) == 2:
            break
    return [first[predicted] for predicted in sorted(first)]


def seconds_of(config: TrainConfig, costs: Costs, batches_per_epoch: int, share: float | None = None) -> float:
    """Return the seconds that a whole run takes by `costs`; `share` is that of GP batches, if no schedule tells."""
    assert config.batches is not None
    counts = phase_counts(config, batches_per_epoch, share)
    predicted = counts[Phase.GP]
    backprop = costs.get("bp", 0.0)
    spent = (config.batches - predicted) * backprop + predicted * costs.get("gp", backprop)
    return spent + config.batches * costs["data"]


def phase_counts(config: TrainConfig, batches_per_epoch: int, share: float | None = None) -> Mapping[Phase, float]:
    """Count the batches of each phase in a run that is measured in batches."""
    assert config.batches is not None
    if share is not None:
        return {Phase.GP: share * config.batches}
    schedule = fitted_schedule(config, batches_per_epoch)
    return Counter(map(schedule.phase, steps_of(config, batches_per_epoch)))
