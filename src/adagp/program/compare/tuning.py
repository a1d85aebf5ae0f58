"""Tuning of one option for each method, on held-out training data, before the compared runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from adagp.core.files import write_atomically
from adagp.errors import RunError
from adagp.program.compare.comparison import BATCHES, REGIMES, ComparedRun, ComparisonWork
from adagp.program.compare.costs import equal_lengths, run_costs
from adagp.program.compare.methods import Candidate, Tuning
from adagp.program.compare.records import Record
from adagp.program.run.config import CONFIG_OPTIONS, TrainConfig
from adagp.program.run.documents import (
    ABSENT,
    FIGURE,
    POSITIVE,
    SWITCH,
    WHOLE,
    Fields,
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
    regime = next((regime for regime in work.comparison.regimes if regime != BATCHES), BATCHES)
    known: Record = {}
    if path.is_file():
        stored = _read(work)
        regime, known = stored["regime"], stored["methods"]
    untuned = [candidate for candidate in _tunable(work, tuning) if candidate.name not in known]
    if untuned or not path.is_file():
        content = {
            "option": tuning.option,
            "values": list(tuning.values),
            "regime": regime,
            "validation": tuning.share,
            "seeds": tuning.seeds,
            "methods": known | _tuned(work, tuning, untuned, regime),
        }
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    picked = {name: method["picked"] for name, method in read_tuned(work)["methods"].items()}
    work.comparison = replace(work.comparison, picked=picked)


def read_tuned(work: ComparisonWork) -> Record:
    """Return the content of tuning.json, with the methods in the order of the comparison."""
    names = [candidate.name for candidate in work.comparison.candidates]
    stored = _read(work)
    return stored | {"methods": {name: stored["methods"][name] for name in names if name in stored["methods"]}}


def _read(work: ComparisonWork) -> Record:
    tuning = work.comparison.tuning
    assert tuning is not None
    names = (candidate.name for candidate in work.comparison.candidates)
    stored: Record = read_result(work.folder.tuning, tuning_shape(tuning, names, work.task.metric.name))
    return stored


def _tunable(work: ComparisonWork, tuning: Tuning) -> list[Candidate]:
    comparison = work.comparison
    if tuning.option in CONFIG_OPTIONS:
        return list(comparison.candidates)
    return [method for method in comparison.candidates if tuning.option in comparison.config(method, 0).own_options]


def _tuned(work: ComparisonWork, tuning: Tuning, candidates: Sequence[Candidate], regime: str) -> Record:
    batches = _lengths(work, tuning, regime)
    trials = {
        candidate.name: list(_trials(work, tuning, candidate, batches[candidate.name])) for candidate in candidates
    }
    interleaved = [trial for trials_of_value in zip(*trials.values(), strict=True) for trial in trials_of_value]
    work.execute([work.run_job(run) for _, run in interleaved], "tuning")
    return {name: _outcome(work, tuning, name, batches[name], own) for name, own in trials.items()}


def _lengths(work: ComparisonWork, tuning: Tuning, regime: str) -> dict[str, int]:
    """Return the lengths of the tuning runs; an adaptive schedule, whose GP batches are not known yet, counts as backprop."""

    def share(candidate: Candidate) -> float | None:
        return 0.0 if work.comparison.config(candidate, 0).schedule().adapts else None

    batches = tuning.batches or work.comparison.batches
    return equal_lengths(work, regime, batches, run_costs(work, regime, share))


def _trials(
    work: ComparisonWork, tuning: Tuning, candidate: Candidate, batches: int
) -> Iterator[tuple[float, ComparedRun]]:
    config = work.comparison.config(candidate, 0, batches)
    for value in tuning.values:
        for seed in range(FIRST_SEED, FIRST_SEED + tuning.seeds):
            own = replace(_with(config, tuning.option, value), seed=seed, validation=tuning.share)
            name = f"{candidate.folder}-{tuning.option}-{value:g}-{batches}-seed{seed}"
            yield value, ComparedRun(candidate, own, RunFolder(work.folder.path / "tuning" / name))


def _with(config: TrainConfig, option: str, value: float) -> TrainConfig:
    if option in CONFIG_OPTIONS:
        changed: dict[str, Any] = {option: value}
        return replace(config, **changed)
    return replace(config, own_options={**config.own_options, option: value})


def _outcome(
    work: ComparisonWork, tuning: Tuning, name: str, batches: int, trials: list[tuple[float, ComparedRun]]
) -> Record:
    """Return the result of each value, and the best one; a value is left out if any of its runs failed or diverged."""
    metric = work.task.metric
    means: dict[float, float] = {}
    for value in tuning.values:
        score = _mean_score([run for own, run in trials if own == value], f"test_{metric.name}")
        if score is not None:
            means[value] = score
    if not means:
        raise RunError(f"method '{name}': the runs failed with every {tuning.option} of --tune.")
    picked = max(means, key=lambda value: metric.sign * means[value])
    return {
        "batches": batches,
        metric.name: {f"{value:g}": means.get(value) for value in tuning.values},
        "picked": picked,
        "at_the_edge": picked in (min(tuning.values), max(tuning.values)),
    }


def _mean_score(runs: Sequence[ComparedRun], figure: str) -> float | None:
    """Return the mean of a figure over the runs; None if any run failed or diverged."""
    shape = record_of({figure: FIGURE})
    scores = [read_result(run.folder.path / "summary.json", shape)[figure] for run in runs if run.finished]
    finite = [score for score in scores if score is not None and isfinite(score)]
    return sum(finite) / len(finite) if len(finite) == len(runs) else None


def tuning_shape(tuning: Tuning, names: Iterable[str], metric: str) -> Shape:
    """Return the expected content of tuning.json; a method without the option may be missing."""
    values = list(tuning.values)
    method = record_of(
        {
            "batches": WHOLE,
            metric: record_of({f"{value:g}": FIGURE for value in values}),
            "picked": _equal_to_any(values, "one of the values of --tune"),
            "at_the_edge": SWITCH,
        }
    )
    return record_of(
        {
            "option": one_of(tuning.option),
            "values": _equal_to_any([values], "the values of --tune"),
            "regime": one_of(*REGIMES),
            "validation": POSITIVE,
            "seeds": WHOLE,
            "methods": Fields(dict.fromkeys(names, method), others=ABSENT),
        }
    )


def _equal_to_any(values: list[Any], words: str) -> Plain:
    return Plain(words, lambda value: not isinstance(value, bool) and value in values)
