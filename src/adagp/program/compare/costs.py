"""The cost of batches and runs: measured seconds, or modelled cycles; and how many batches a budget allows.

All methods, with each batch size that they may have, are timed in one process, interleaved: each round times one BP batch and
one GP batch of each, so that a disturbance of the machine affects them alike. The cost is the median over the rounds. If a
source does extra work in every Nth BP batch only, the cost is the mean of the medians of the N kinds of batches.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from statistics import fmean, median
from typing import Any, TypeVar

from adagp.core.files import write_atomically
from adagp.core.methods import batch_variation
from adagp.core.plan import Phase, Step
from adagp.errors import OptionError, RunError
from adagp.program.compare.comparison import BATCHES, FORMER, MODELLED, SECONDS
from adagp.program.compare.methods import Candidate, fitted_schedule, steps_of
from adagp.program.compare.records import Record, run_record
from adagp.program.compare.work import ComparisonWork
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import (
    ABSENT,
    AMOUNT,
    POSITIVE,
    WHOLE,
    Both,
    Either,
    Fields,
    Plain,
    Shape,
    TableOf,
    read_result,
    record_of,
)
from adagp.program.run.folder import to_json
from adagp.program.tasks.base import Task
from adagp.program.train.loop import to_device
from adagp.program.train.session import Session
from adagp.schedules import Schedule

WARM = 3
"""BP batches before the first timing: they fill caches and train the sources."""
Costs = dict[str, float]
"""Seconds of a BP batch (`bp`), of a GP batch (`gp`, if there are any), and of loading its data (`data`)."""


Key = TypeVar("Key")


def calibrate(
    configs: Mapping[Key, TrainConfig],
    task_of: Callable[[TrainConfig], Task],
    rounds: int,
    on_round: Callable[[], None] = lambda: None,
) -> dict[Key, Costs]:
    """Return the median costs of a batch of each configuration; `on_round` is called after each round."""
    timers = {key: _Timer(config, task_of(config)) for key, config in configs.items()}
    for timer in timers.values():
        for _ in range(WARM):
            timer.time(timer.steps[0])
    for _ in range(rounds):
        for timer in timers.values():
            timer.time_round()
        on_round()
    return {key: timer.medians() for key, timer in timers.items()}


def _cyclic_median(values: Sequence[float], cycle: int) -> float:
    """Return the median of values with period `cycle`: the mean over the offsets of the median at each offset."""
    return fmean(median(values[offset::cycle]) for offset in range(min(cycle, len(values))))


class _Timer:
    """Times single batches of one method, at steps where its schedule has the phase."""

    def __init__(self, config: TrainConfig, task: Task) -> None:
        # The guard is timed too, but must not turn the GP batch of an untrained predictor into a BP batch.
        self.session = Session(replace(config, guard_limit=1e30), task=task, threads=1)
        self.task = task
        self._batches = endless_batches(task)
        self._cycle = batch_variation(config.method, config.method_options).cycle
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        trainer = self.session.trainer
        self.steps = timed_steps(trainer.schedule, self.session.config, task.batches_per_epoch)

    def time_round(self) -> None:
        """Time one batch at each of the steps, and store the seconds."""
        for step in self.steps:
            for kind, seconds in self.time(step).items():
                self._seconds[kind].append(seconds)

    def medians(self) -> Costs:
        """Return the median seconds over the rounds."""
        return {
            kind: _cyclic_median(values, self._cycle if kind == "bp" else 1) for kind, values in self._seconds.items()
        }

    def time(self, step: Step) -> Costs:
        """Train one batch as if it were at `step`; return its seconds and those of its data."""
        trainer = self.session.trainer
        started = time.perf_counter()
        inputs, targets = (to_device(part, self.session.device) for part in next(self._batches))
        start = time.perf_counter()
        trainer.move_to(step)
        result = trainer.step(inputs, targets, self.task.loss)
        end = time.perf_counter()
        return {"gp" if result.phase is Phase.GP else "bp": end - start, "data": start - started}


def endless_batches(task: Task) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of one epoch after the other."""
    for epoch in count():
        yield from task.batches(epoch)


def timed_steps(schedule: Schedule, config: TrainConfig, batches_per_epoch: int) -> list[Step]:
    """Return the first BP step (a warm-up batch costs the same) and the first GP step, if the run has them.

    An adaptive schedule chooses the phase itself: two batches a round, of either phase.
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


def run_seconds(config: TrainConfig, costs: Costs, batches_per_epoch: int, share: float | None = None) -> float:
    """Return the calibrated seconds of a whole run; `share`: see `CostModel`."""
    assert config.batches is not None
    counts = phase_counts(config, batches_per_epoch, share)
    predicted = counts[Phase.GP]
    backprop = costs.get("bp", 0.0)
    spent = (config.batches - predicted) * backprop + predicted * costs.get("gp", backprop)
    return spent + config.batches * costs["data"]


def phase_counts(config: TrainConfig, batches_per_epoch: int, share: float | None = None) -> Mapping[Phase, float]:
    """Count the batches of each phase in a run whose length is set in batches."""
    assert config.batches is not None
    if share is not None:
        return {Phase.GP: share * config.batches}
    schedule = fitted_schedule(config, batches_per_epoch)
    return Counter(map(schedule.phase, steps_of(config, batches_per_epoch)))


LONGEST = 1_000
"""Upper limit of a run's length, as a multiple of backprop's."""


def longest_run(
    budget: float, config: TrainConfig, cost: Callable[[TrainConfig], float], batches_per_epoch: int
) -> int:
    """Return how many batches cost at most `budget`; at least 1.

    A schedule may depend on the run's length, so that cost need not grow with length. Then the result is a length that fits
    while one batch more does not. Raises if the budget is below the cost of the warm-up, or if batches cost almost nothing.
    """
    assert config.batches is not None
    most = LONGEST * config.batches

    def fits(batches: int) -> bool:
        longer = replace(config, batches=batches)
        try:
            fitted_schedule(longer, batches_per_epoch)
        except OptionError:  # shorter than the warm-up: try a longer run
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
    fitted_schedule(replace(config, batches=low), batches_per_epoch)  # raises if shorter than the warm-up
    return low


MOST_TIMES = 1_000_000
"""Upper limit of the ratio of two batches' costs, for checking files."""
COSTS = Fields({"bp": POSITIVE, "gp": POSITIVE, "data": POSITIVE}, others=ABSENT, required=("data",))


def timing_shape(sizes: Mapping[str, Sequence[int]]) -> Shape:
    """Return the expected content of timing.json; `sizes` are the batch sizes of each method.

    Earlier versions, with one batch size for all, stored the costs without it.
    """
    by_size = {name: record_of({str(size): COSTS for size in own}, others=ABSENT) for name, own in sizes.items()}
    former = dict.fromkeys(sizes, COSTS)
    comparable = Plain(f"costs with ratios of at most {MOST_TIMES:,}", _are_comparable)
    methods = Either(record_of(by_size, others=ABSENT), record_of(former, others=ABSENT))
    return record_of({"methods": Both(methods, comparable)})


def _are_comparable(methods: Mapping[str, Mapping[str, Any]]) -> bool:
    batches = [costs for own in methods.values() for costs in _by_size(own).values()]
    dearest = max(sum(costs.values()) for costs in batches)
    cheapest = min(costs["data"] + min(costs.get(kind, dearest) for kind in ("bp", "gp")) for costs in batches)
    return dearest <= MOST_TIMES * cheapest


def _by_size(costs: Mapping[str, Any], size: int = 0) -> dict[int, Costs]:
    """Return a method's costs by batch size; those of earlier versions, stored without it, are of `size`."""
    if "data" in costs:
        return {size: dict(costs)}
    return {int(number): own for number, own in costs.items()}


def calibration_shape(names: Iterable[str], batches: int) -> Shape:
    """Return the expected content of calibration.json; `batches` is the length at equal batches."""
    most = MOST_TIMES * batches
    former = {now: before for before, now in FORMER.items()}
    seconds = Either(
        record_of({BATCHES: AMOUNT, SECONDS: AMOUNT}), record_of({former[BATCHES]: AMOUNT, SECONDS: AMOUNT})
    )
    in_range = Plain(f"a whole number from 1 to {most:,}", lambda value: WHOLE.accepted(value) and value <= most)
    method = record_of({"cost": TableOf(AMOUNT), "batches": in_range, "seconds": seconds})
    return record_of({"budget_seconds": AMOUNT, "methods": record_of(dict.fromkeys(names, method), others=ABSENT)})


RunCost = Callable[[TrainConfig], float]
"""Returns the cost of a whole run."""


def run_lengths(work: ComparisonWork, regime: str) -> dict[str, int]:
    """Return the number of batches of each method's runs in a regime."""
    if regime == BATCHES:
        comparison = work.comparison
        return {each.name: default_length(comparison.config(each, 0)) for each in comparison.candidates}
    costs = calibration(work) if regime == SECONDS else modelled_costs(work, regime)
    return {name: method["batches"] for name, method in costs["methods"].items()}


def default_length(config: TrainConfig) -> int:
    """Return the batches of a run whose length is set in batches."""
    assert config.batches is not None
    return config.batches


def affordable_batches(
    work: ComparisonWork, candidate: Candidate, config: TrainConfig, budget: float, cost: RunCost
) -> int:
    """Return how many batches of a method cost at most `budget`; errors name it."""
    try:
        return longest_run(budget, config, cost, work.epoch_length(config))
    except OptionError as error:
        raise OptionError(f"method '{candidate.name}': {error}") from None


def run_costs(work: ComparisonWork, regime: str, share_of: Callable[[Candidate], float | None]) -> dict[str, RunCost]:
    """Return by method the cost function of a regime; `share_of` returns the share of GP batches of an adaptive schedule."""
    costs: dict[str, RunCost] = {}
    for candidate in work.comparison.candidates:
        share = share_of(candidate)
        if regime == SECONDS:
            costs[candidate.name] = partial(_seconds_of_run, work, batch_seconds(work)[candidate.name], share)
        elif regime in MODELLED:
            costs[candidate.name] = partial(work.cost_model(regime).run_cost, share=share)
    return costs


def _seconds_of_run(
    work: ComparisonWork, by_size: Mapping[int, Costs], share: float | None, config: TrainConfig
) -> float:
    return run_seconds(config, by_size[config.batch_size], work.epoch_length(config), share)


def batch_seconds(work: ComparisonWork) -> dict[str, dict[int, Costs]]:
    """Return the seconds of a batch of each kind, by method and batch size; measured once and stored in the folder."""
    path, comparison = work.folder.timing, work.comparison
    sizes = {candidate.name: comparison.batch_sizes(candidate) for candidate in comparison.candidates}
    if not path.is_file():
        configs = {
            (candidate.name, size): config
            for candidate in comparison.candidates
            for size, config in work.configs(candidate).items()
        }
        work.observer.begin("calibration", comparison.rounds)
        costs = calibrate(configs, work.task_of, comparison.rounds, work.observer.advance)
        methods = {name: {str(size): costs[name, size] for size in own} for name, own in sizes.items()}
        content = {"rounds": comparison.rounds, "methods": methods}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    stored: Record = read_result(path, timing_shape(sizes))["methods"]
    return {name: _by_size(costs, sizes[name][0]) for name, costs in stored.items()}


def calibration(work: ComparisonWork) -> Record:
    """Return by method the measured costs and the number of batches at equal seconds; stored in the folder."""
    path = work.folder.calibration
    if not path.is_file():
        comparison = work.comparison
        costs = batch_seconds(work)
        run_cost = run_costs(work, SECONDS, lambda candidate: predicted_share(work, candidate))
        reference = comparison.reference
        budget = comparison.seconds or run_cost[reference.name](comparison.config(reference, 0))
        methods = {}
        for candidate in comparison.candidates:
            config, cost = comparison.config(candidate, 0), run_cost[candidate.name]
            batches = affordable_batches(work, candidate, config, budget, cost)
            methods[candidate.name] = {
                "batch_size": config.batch_size,
                "cost": costs[candidate.name][config.batch_size],
                "batches": batches,
                "seconds": {BATCHES: cost(config), SECONDS: cost(replace(config, batches=batches))},
            }
        content = {"budget_seconds": budget, "rounds": comparison.rounds, "methods": methods}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    stored: Record = read_result(path, calibration_shape(_names(work), work.comparison.batches))
    for method in stored["methods"].values():
        method["seconds"] = {FORMER.get(regime, regime): value for regime, value in method["seconds"].items()}
    return stored


def _names(work: ComparisonWork) -> list[str]:
    return [candidate.name for candidate in work.comparison.candidates]


def modelled_costs(work: ComparisonWork, regime: str) -> Record:
    """Return by method the modelled costs and the number of batches at equal cost; computed each time, not stored.

    `costs` has a run's cost at equal batches and at equal cost.
    """
    comparison, model = work.comparison, work.cost_model(regime)
    shares = {candidate.name: predicted_share(work, candidate) for candidate in comparison.candidates}
    costs = run_costs(work, regime, lambda candidate: shares[candidate.name])
    reference = comparison.reference
    budget = costs[reference.name](comparison.config(reference, 0))
    methods: dict[str, Record] = {}
    for candidate in comparison.candidates:
        config, cost, share = comparison.config(candidate, 0), costs[candidate.name], shares[candidate.name]
        affordable = replace(config, batches=affordable_batches(work, candidate, config, budget, cost))
        methods[candidate.name] = {
            "batch_size": config.batch_size,
            "batches": affordable.batches,
            "kinds": [asdict(kind) for kind in model.batch_costs(affordable, share)],
            "costs": {BATCHES: cost(config), regime: cost(affordable)},
            **model.details(affordable, share),
        }
    return {"platform": model.text, "unit": "cycles", "budget": budget, "methods": methods}


def predicted_share(work: ComparisonWork, candidate: Candidate) -> float | None:
    """Return the share of GP batches that an adaptive schedule had at equal batches; None for other schedules."""
    if not work.comparison.config(candidate, 0).schedule().adapts:
        return None
    runs = work.folder.runs(work.comparison, run_lengths(work, BATCHES))
    records = [run_record(run, BATCHES, None) for run in runs if run.candidate == candidate and run.finished]
    if not records:
        raise RunError(
            f"no run of '{candidate.name}' at equal batches succeeded, so its share of GP batches is not known."
        )
    predicted = sum(run["gp_batches"] + run["guarded_batches"] for run in records)
    return float(predicted / sum(run["batches"] for run in records))
