"""What a batch of each kind costs a method in seconds, measured.

All methods are timed in one process, in turns: a round times one batch by backprop and one GP batch of each method, so that
whatever disturbs the machine disturbs them all. Medians over the rounds are what counts; where a source does something in one
of so many batches by backprop only, the mean of the medians of these batches.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from statistics import fmean, median
from typing import Any

from adagp.core.files import write_atomically
from adagp.core.methods import batch_variation
from adagp.core.plan import Phase, Step
from adagp.errors import OptionError, RunError
from adagp.program.compare.comparison import BATCHES, FORMER, MODELLED, SECONDS, ComparisonWork
from adagp.program.compare.methods import Candidate, fitted_schedule, steps_of
from adagp.program.compare.records import Record, run_record
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


MOST_TIMES = 1_000_000
"""How many times dearer one batch can be than another one."""
COSTS = Fields({"bp": POSITIVE, "gp": POSITIVE, "data": POSITIVE}, others=ABSENT, required=("data",))


def timing_shape(names: Iterable[str]) -> Shape:
    """Return the shape of the seconds of batches of the candidates `names`."""
    methods = record_of(dict.fromkeys(names, COSTS), others=ABSENT)
    comparable = Plain(f"costs of which none is {MOST_TIMES:,} times another one", _are_comparable)
    return record_of({"methods": Both(methods, comparable)})


def _are_comparable(methods: Mapping[str, Mapping[str, float]]) -> bool:
    dearest = max(sum(costs.values()) for costs in methods.values())
    cheapest = min(costs["data"] + min(costs.get(kind, dearest) for kind in ("bp", "gp")) for costs in methods.values())
    return dearest <= MOST_TIMES * cheapest


def calibration_shape(names: Iterable[str], batches: int) -> Shape:
    """Return the shape of a calibration of the candidates `names`, with runs of `batches` in the regime of equal ones."""
    most = MOST_TIMES * batches
    former = {now: before for before, now in FORMER.items()}
    seconds = Either(
        record_of({BATCHES: AMOUNT, SECONDS: AMOUNT}), record_of({former[BATCHES]: AMOUNT, SECONDS: AMOUNT})
    )
    fitting = Plain(f"a whole number from 1 to {most:,}", lambda value: WHOLE.accepted(value) and value <= most)
    found = record_of({"cost": TableOf(AMOUNT), "batches": fitting, "seconds": seconds})
    return record_of({"budget_seconds": AMOUNT, "methods": record_of(dict.fromkeys(names, found), others=ABSENT)})


RunCost = Callable[[TrainConfig], float]


def lengths(work: ComparisonWork, regime: str) -> dict[str, int]:
    """Return how many batches each candidate's runs have in a regime."""
    if regime == BATCHES:
        return {candidate.name: work.comparison.batches for candidate in work.comparison.candidates}
    found = calibration(work) if regime == SECONDS else modelled(work, regime)
    return {name: one["batches"] for name, one in found["methods"].items()}


def equal_lengths(work: ComparisonWork, regime: str, batches: int, costs: dict[str, RunCost]) -> dict[str, int]:
    """Return how many batches of each candidate fit into the cost of `batches` by backprop."""
    comparison = work.comparison
    if regime == BATCHES:
        return {candidate.name: batches for candidate in comparison.candidates}
    own = replace(comparison.config(comparison.reference, 0), batches=batches)
    budget = costs[comparison.reference.name](own)
    return {
        candidate.name: fitting(work, candidate, budget, costs[candidate.name]) for candidate in comparison.candidates
    }


def fitting(work: ComparisonWork, candidate: Candidate, budget: float, cost: RunCost) -> int:
    """Return how many batches of a candidate fit into a budget."""
    try:
        return longest_run(budget, work.comparison.config(candidate, 0), cost, work.batches_per_epoch)
    except OptionError as error:
        raise OptionError(f"method '{candidate.name}': {error}") from None


def run_costs(work: ComparisonWork, regime: str, adapted: Callable[[Candidate], float | None]) -> dict[str, RunCost]:
    """Return by candidate what a run costs in a regime; `adapted` tells the share of GP batches of an adaptive schedule."""
    found: dict[str, RunCost] = {}
    for candidate in work.comparison.candidates:
        share = adapted(candidate)
        if regime == SECONDS:
            known = timed(work)["methods"][candidate.name]
            found[candidate.name] = lambda config, known=known, share=share: seconds_of(  # type: ignore[misc]
                config, known, work.batches_per_epoch, share
            )
        elif regime in MODELLED:
            model = work.cost_model(regime)
            found[candidate.name] = lambda config, model=model, share=share: model.run_cost(config, share)  # type: ignore[misc]
    return found


def timed(work: ComparisonWork) -> Record:
    """Return the seconds of a batch of each kind by candidate, measured once and then kept."""
    path = work.folder.timing
    if not path.is_file():
        comparison = work.comparison
        configs = {candidate.name: comparison.config(candidate, 0) for candidate in comparison.candidates}
        work.observer.begin("calibration", comparison.rounds)
        costs = calibrate(configs, work.task, comparison.rounds, work.observer.advance)
        content = {"rounds": comparison.rounds, "methods": costs}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    found: Record = read_result(path, timing_shape(_names(work)))
    return found


def calibration(work: ComparisonWork) -> Record:
    """Return the measured costs of all methods' batches and how many fit into the time, found once and then kept."""
    path = work.folder.calibration
    if not path.is_file():
        comparison = work.comparison
        costs = timed(work)["methods"]
        run_cost = run_costs(work, SECONDS, lambda candidate: predicted_share(work, candidate))
        reference = comparison.reference
        budget = comparison.seconds or run_cost[reference.name](comparison.config(reference, 0))
        methods = {}
        for candidate in comparison.candidates:
            batches = fitting(work, candidate, budget, run_cost[candidate.name])
            config = comparison.config(candidate, 0)
            seconds = {
                regime: run_cost[candidate.name](replace(config, batches=number))
                for regime, number in ((BATCHES, comparison.batches), (SECONDS, batches))
            }
            methods[candidate.name] = {"cost": costs[candidate.name], "batches": batches, "seconds": seconds}
        content = {"budget_seconds": budget, "rounds": comparison.rounds, "methods": methods}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    found: Record = read_result(path, calibration_shape(_names(work), work.comparison.batches))
    for one in found["methods"].values():
        one["seconds"] = {FORMER.get(regime, regime): value for regime, value in one["seconds"].items()}
    return found


def _names(work: ComparisonWork) -> list[str]:
    return [candidate.name for candidate in work.comparison.candidates]


def modelled(work: ComparisonWork, regime: str) -> Record:
    """Return the modelled costs of all methods' runs and how many batches fit into backprop's.

    They are computed each time: the same options give the same figures. `costs` has a run's cost in each regime that needs
    no more than these.
    """
    comparison, model = work.comparison, work.cost_model(regime)
    shares = {candidate.name: predicted_share(work, candidate) for candidate in comparison.candidates}
    costs = run_costs(work, regime, lambda candidate: shares[candidate.name])
    batches = equal_lengths(work, regime, comparison.batches, costs)
    methods: dict[str, Record] = {}
    for candidate in comparison.candidates:
        config = comparison.config(candidate, 0)
        own, cost = replace(config, batches=batches[candidate.name]), costs[candidate.name]
        methods[candidate.name] = {
            "batches": batches[candidate.name],
            "kinds": [asdict(one) for one in model.batch_costs(own, shares[candidate.name])],
            "costs": {BATCHES: cost(config), regime: cost(own)},
            **model.details(own, shares[candidate.name]),
        }
    budget = methods[comparison.reference.name]["costs"][BATCHES]
    return {"platform": model.text, "unit": "cycles", "budget": budget, "methods": methods}


def predicted_share(work: ComparisonWork, candidate: Candidate) -> float | None:
    """Return the share of GP batches that an adaptive schedule came to at equal batches; None for one that can be counted."""
    if not work.comparison.config(candidate, 0).schedule().adapts:
        return None
    runs = work.folder.runs(work.comparison, lengths(work, BATCHES))
    records = [run_record(run, BATCHES, None) for run in runs if run.candidate == candidate and run.finished]
    if not records:
        raise RunError(
            f"no run of '{candidate.name}' at equal batches has ended well: how much it predicts is not known."
        )
    predicted = sum(one["gp_batches"] + one["guarded_batches"] for one in records)
    return float(predicted / sum(one["batches"] for one in records))
