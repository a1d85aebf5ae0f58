"""Tuning of one or several options for each method, on held-out training data, before the compared runs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from adagp.core.files import write_atomically
from adagp.errors import OptionError, RunError
from adagp.program.compare.comparison import BATCHES, REGIMES, ComparedRun, Comparison
from adagp.program.compare.costs import affordable_batches, run_costs
from adagp.program.compare.grid import Tuning, Values, upgraded_tuning
from adagp.program.compare.methods import Candidate
from adagp.program.compare.records import Record
from adagp.program.compare.work import ComparisonWork
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import (
    ABSENT,
    COUNT,
    FIGURE,
    POSITIVE,
    SWITCH,
    WHOLE,
    Either,
    Fields,
    ListOf,
    Plain,
    Shape,
    one_of,
    read_result,
    record_of,
)
from adagp.program.run.folder import RunFolder, to_json

FIRST_SEED = 10_000
"""First seed of the tuning runs: above all seeds of compared runs."""


def tune(work: ComparisonWork) -> None:
    """Tune the methods that are not tuned yet, store the outcome, and set `picked` of the comparison."""
    tuning, path = work.comparison.tuning, work.folder.tuning
    assert tuning is not None
    stored: Record = _read(work) if path.is_file() else {"regime": _tuning_regime(work.comparison), "methods": {}}
    untuned = _untuned(work, tuning, stored["methods"])
    if untuned or not path.is_file():
        content = {
            "options": {option: list(values) for option, values in tuning.options.items()},
            "regime": stored["regime"],
            "validation": tuning.share,
            "seeds": tuning.seeds,
            "methods": stored["methods"] | _tuned(work, tuning, untuned, stored["regime"]),
        }
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    picked = {name: method["picked"] for name, method in read_tuned(work)["methods"].items()}
    work.comparison = replace(work.comparison, picked=picked)


def _tuning_regime(comparison: Comparison) -> str:
    """Return the first regime of equal cost; equal batches if there is none."""
    return next((regime for regime in comparison.regimes if regime != BATCHES), BATCHES)


def _untuned(work: ComparisonWork, tuning: Tuning, known: Collection[str]) -> list[Candidate]:
    """Return the methods that have some of the options and are not tuned yet."""
    untuned = [candidate for candidate in work.comparison.candidates if candidate.name not in known]
    return [candidate for candidate in untuned if _grid(work, tuning, candidate)]


def read_tuned(work: ComparisonWork) -> Record:
    """Return the content of tuning.json, with the methods in the order of the comparison."""
    names = [candidate.name for candidate in work.comparison.candidates]
    stored = _read(work)
    return stored | {"methods": {name: stored["methods"][name] for name in names if name in stored["methods"]}}


def _read(work: ComparisonWork) -> Record:
    tuning = work.comparison.tuning
    assert tuning is not None
    grids = {candidate.name: _grid(work, tuning, candidate) for candidate in work.comparison.candidates}
    metric = work.task.metric.name
    shape = _tuning_shape(tuning, grids, metric)
    if len(tuning.options) == 1:
        shape = Either(shape, _former_shape(tuning, grids, metric))
    return upgraded_tuning(read_result(work.folder.tuning, shape), metric)


def _grid(work: ComparisonWork, tuning: Tuning, candidate: Candidate) -> list[Values]:
    """Return the values that are tried for a method; none if it has none of the options."""
    return tuning.grid(work.comparison.config(candidate, 0, tuned={}))


@dataclass(frozen=True)
class _Trial:
    """A point of a method's grid, and its runs of all tuning seeds; none if the warm-up alone costs more than the budget."""

    values: Values
    batches: int
    runs: tuple[ComparedRun, ...]


Length = Callable[[Candidate, TrainConfig], int]
"""Returns the batches of a method's tuning runs with a configuration."""


def _tuned(work: ComparisonWork, tuning: Tuning, candidates: Sequence[Candidate], regime: str) -> Record:
    length = _length_function(work, tuning, regime)
    trials = {candidate.name: _trials(work, tuning, candidate, length) for candidate in candidates}
    work.execute([work.run_job(run) for run in _interleaved(trials)], "tuning")
    return {name: _outcome(work, tuning, name, own) for name, own in trials.items()}


def _trials(work: ComparisonWork, tuning: Tuning, candidate: Candidate, length: Length) -> list[_Trial]:
    """Return the trials of a method; raise if none fits the budget."""
    trials, error = [], None
    for values in _grid(work, tuning, candidate):
        try:
            trials.append(_trial(work, tuning, candidate, values, length))
        except OptionError as too_long:
            trials.append(_Trial(values, 0, ()))
            error = too_long
    if error is not None and not any(trial.runs for trial in trials):
        raise error
    return trials


def _interleaved(trials: Mapping[str, Sequence[_Trial]]) -> Iterator[ComparedRun]:
    """Yield the runs, the first trial of every method first."""
    for index in range(max(map(len, trials.values()), default=0)):
        for own in trials.values():
            for trial in own[index : index + 1]:
                yield from trial.runs


def _length_function(work: ComparisonWork, tuning: Tuning, regime: str) -> Length:
    """Return how long tuning runs of equal cost are.

    An adaptive schedule, whose GP batches are not known yet, counts as backprop.
    """
    comparison, reference = work.comparison, work.comparison.reference
    batches = tuning.batches or comparison.batches

    def share(candidate: Candidate) -> float | None:
        return 0.0 if comparison.config(candidate, 0).schedule().adapts else None

    def scaled(config: TrainConfig) -> TrainConfig:
        return replace(config, batches=comparison.equal_batches(batches, config.batch_size))

    costs = run_costs(work, regime, share)
    if regime == BATCHES:
        return lambda candidate, config: comparison.equal_batches(batches, config.batch_size)
    budget = costs[reference.name](scaled(comparison.config(reference, 0, tuned={})))
    return lambda candidate, config: affordable_batches(work, candidate, config, budget, costs[candidate.name])


def _trial(work: ComparisonWork, tuning: Tuning, candidate: Candidate, values: Values, length: Length) -> _Trial:
    batches = length(candidate, work.comparison.config(candidate, 0, tuned=values))
    point = "-".join(f"{option}-{value:g}" for option, value in values.items())
    runs = []
    for seed in range(FIRST_SEED, FIRST_SEED + tuning.seeds):
        config = replace(work.comparison.config(candidate, seed, batches, values), validation=tuning.share)
        folder = RunFolder(work.folder.path / "tuning" / f"{candidate.folder}-{point}-{batches}-seed{seed}")
        runs.append(ComparedRun(candidate, config, folder))
    return _Trial(values, batches, tuple(runs))


def _outcome(work: ComparisonWork, tuning: Tuning, name: str, trials: Sequence[_Trial]) -> Record:
    """Return the result of each trial, and the best values; a trial is left out if any of its runs failed or diverged."""
    metric = work.task.metric
    scores = [_mean_score(trial.runs, f"test_{metric.name}") for trial in trials]
    best = max(
        ((metric.sign * score, index) for index, score in enumerate(scores) if score is not None),
        key=lambda scored: scored[0],
        default=None,
    )
    if best is None:
        raise RunError(f"method '{name}': the runs failed with every {' and '.join(trials[0].values)} of --tune.")
    picked = trials[best[1]].values
    return {
        "trials": [
            {"values": dict(trial.values), "batches": trial.batches, metric.name: score}
            for trial, score in zip(trials, scores, strict=True)
        ],
        "picked": dict(picked),
        "at_the_edge": tuning.at_the_edge(picked),
    }


def _mean_score(runs: Sequence[ComparedRun], figure: str) -> float | None:
    """Return the mean of a figure over the runs; None if there are none, or if any failed or diverged."""
    shape = record_of({figure: FIGURE})
    scores = [read_result(run.folder.path / "summary.json", shape)[figure] for run in runs if run.finished]
    finite = [score for score in scores if score is not None and isfinite(score)]
    return sum(finite) / len(finite) if finite and len(finite) == len(runs) else None


def _tuning_shape(tuning: Tuning, grids: Mapping[str, Sequence[Values]], metric: str) -> Shape:
    """Return the expected content of tuning.json; a method without the options may be missing."""
    options = {option: list(values) for option, values in tuning.options.items()}

    def method(grid: Sequence[Values]) -> Shape:
        values = _equal_to_any([dict(point) for point in grid], "values of --tune")
        trial = record_of({"values": values, "batches": COUNT, metric: FIGURE})
        return record_of({"trials": ListOf(trial), "picked": values, "at_the_edge": ListOf(one_of(*tuning.options))})

    return record_of({"options": _equal_to_any([options], "the options of --tune"), **_common(grids, method)})


def _former_shape(tuning: Tuning, grids: Mapping[str, Sequence[Values]], metric: str) -> Shape:
    """Return the content of tuning.json in earlier versions, which tuned a single option."""
    ((option, values),) = tuning.options.items()
    outcome = record_of(
        {
            "batches": WHOLE,
            metric: record_of({f"{value:g}": FIGURE for value in values}),
            "picked": _equal_to_any(list(values), "one of the values of --tune"),
            "at_the_edge": SWITCH,
        }
    )
    return record_of(
        {
            "option": one_of(option),
            "values": _equal_to_any([list(values)], "the values of --tune"),
            **_common(grids, lambda grid: outcome),
        }
    )


def _common(grids: Mapping[str, Sequence[Values]], method: Callable[[Sequence[Values]], Shape]) -> dict[str, Shape]:
    methods = {name: method(grid) for name, grid in grids.items() if grid}
    return {
        "regime": one_of(*REGIMES),
        "validation": POSITIVE,
        "seeds": WHOLE,
        "methods": Fields(methods, others=ABSENT),
    }


def _equal_to_any(values: list[Any], words: str) -> Plain:
    return Plain(words, lambda value: not isinstance(value, bool) and value in values)
