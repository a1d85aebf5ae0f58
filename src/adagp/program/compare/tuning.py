"""Each method's own value of an option, picked by data that are held out of the training set, before the seeds are run."""

from collections.abc import Iterable, Iterator
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
"""Of the tuning runs: above all seeds that a comparison may have."""


def tune(work: ComparisonWork) -> None:
    """Try all values for the methods that have not been tuned, keep the outcome, and tell the comparison what each picked."""
    tuning, path = work.comparison.tuning, work.folder.tuning
    assert tuning is not None
    regime = next((one for one in work.comparison.regimes if one != BATCHES), BATCHES)
    known: Record = {}
    if path.is_file():
        before = _read(work)
        regime, known = before["regime"], before["methods"]
    candidates = [
        candidate
        for candidate in work.comparison.candidates
        if candidate.name not in known and _has_option(work, candidate)
    ]
    if candidates or not path.is_file():
        batches = _lengths(work, tuning, regime)
        trials = {
            candidate.name: list(_trials(work, tuning, candidate, batches[candidate.name])) for candidate in candidates
        }
        in_turns = [run for value in zip(*trials.values(), strict=True) for run in value]
        work.execute([work.run_job(run) for _, run in in_turns], "tuning")
        found = {name: _outcome(work, tuning, name, batches[name], own) for name, own in trials.items()}
        content = {
            "option": tuning.option,
            "values": list(tuning.values),
            "regime": regime,
            "validation": tuning.share,
            "seeds": tuning.seeds,
            "methods": known | found,
        }
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    picked = {name: one["picked"] for name, one in read_tuned(work)["methods"].items()}
    work.comparison = replace(work.comparison, picked=picked)


def read_tuned(work: ComparisonWork) -> Record:
    """Return what was found, in the order in which methods are compared."""
    names = [candidate.name for candidate in work.comparison.candidates]
    found = _read(work)
    return found | {"methods": {name: found["methods"][name] for name in names if name in found["methods"]}}


def _read(work: ComparisonWork) -> Record:
    tuning = work.comparison.tuning
    assert tuning is not None
    names = (candidate.name for candidate in work.comparison.candidates)
    found: Record = read_result(work.folder.tuning, tuning_shape(tuning, names, work.task.metric.name))
    return found


def _has_option(work: ComparisonWork, candidate: Candidate) -> bool:
    """Tell whether a method has the option that is tuned."""
    tuning = work.comparison.tuning
    assert tuning is not None
    return tuning.option in CONFIG_OPTIONS or tuning.option in work.comparison.config(candidate, 0).own_options


def _lengths(work: ComparisonWork, tuning: Tuning, regime: str) -> dict[str, int]:
    """Return the lengths of the tuning runs; how much an adaptive schedule predicts is not known, so they count as backprop."""

    def share(candidate: Candidate) -> float | None:
        return 0.0 if work.comparison.config(candidate, 0).schedule().adapts else None

    batches = tuning.batches or work.comparison.batches
    return equal_lengths(work, regime, batches, run_costs(work, regime, share))


def _trials(
    work: ComparisonWork, tuning: Tuning, candidate: Candidate, batches: int
) -> Iterator[tuple[float, ComparedRun]]:
    """Yield the tuning runs of a candidate with their values."""
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
    """Return what each value came to, and the best of them; a value whose runs failed or diverged is none."""
    metric = work.task.metric
    found: dict[float, float] = {}
    for value in tuning.values:
        shape = record_of({f"test_{metric.name}": FIGURE})
        summaries = [
            read_result(run.folder.path / "summary.json", shape) for own, run in trials if own == value and run.finished
        ]
        scores = [one[f"test_{metric.name}"] for one in summaries]
        if len(scores) == tuning.seeds and all(score is not None and isfinite(score) for score in scores):
            found[value] = sum(scores) / len(scores)
    if not found:
        raise RunError(f"method '{name}': no run with any {tuning.option} of --tune ended well.")
    picked = max(found, key=lambda value: metric.sign * found[value])
    return {
        "batches": batches,
        metric.name: {f"{value:g}": found.get(value) for value in tuning.values},
        "picked": picked,
        "at_the_edge": picked in (min(tuning.values), max(tuning.values)),
    }


def tuning_shape(tuning: Tuning, names: Iterable[str], metric: str) -> Shape:
    """Return the shape of what tuning found for the candidates `names`; one without the option is left out."""
    values = list(tuning.values)
    found = record_of(
        {
            "batches": WHOLE,
            metric: record_of({f"{value:g}": FIGURE for value in values}),
            "picked": _one_like(values, "one of the values of --tune"),
            "at_the_edge": SWITCH,
        }
    )
    return record_of(
        {
            "option": one_of(tuning.option),
            "values": _one_like([values], "the values of --tune"),
            "regime": one_of(*REGIMES),
            "validation": POSITIVE,
            "seeds": WHOLE,
            "methods": Fields(dict.fromkeys(names, found), others=ABSENT),
        }
    )


def _one_like(values: list[Any], words: str) -> Plain:
    return Plain(words, lambda value: not isinstance(value, bool) and value in values)
