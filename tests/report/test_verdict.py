from typing import Any

import pytest

from adagp.report.groups import chapters
from adagp.report.verdict import moments, value_at, verdict
from adagp.run.metrics import Metric
from adagp.run.record import collect


def told(paths: list[Any]) -> list[str]:
    (chapter,) = chapters(collect(paths))
    return verdict(chapter)


def test_an_accuracy_is_read_off_at_the_last_epoch_that_ended_in_time(write_run: Any) -> None:
    (run,) = collect([write_run("one", method="bp", best=0.8)])  # 1.1 s an epoch
    at = [value_at(run, seconds) for seconds in (1.0, 1.1, 2.3, 99.0)]
    assert at == [None, pytest.approx(0.2), pytest.approx(0.4), pytest.approx(0.8)]


def test_a_clear_winner(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.90 + 0.01 * seed) for seed in (0, 1, 2)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.60 + 0.01 * seed) for seed in (0, 1, 2)]
    # adagp ends after 3.65 s, when three epochs of bp are over: 0.6825 on average; adagp has 0.61
    assert told(runs) == [
        "After 3.65 s of training each, when adagp ends, bp leads with 68.25% (66.39 to 70.11, 3 seeds), before "
        "adagp with 61.00% (58.52 to 63.48, 3 seeds).",
        "bp wins: the difference is 7.25 points (95% interval 4.95 to 9.55).",
    ]


def test_the_lower_error_wins(write_run: Any) -> None:
    metrics = (Metric("mean_squared_error", higher_is_better=False),)
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.3 + 0.01 * seed, metrics=metrics) for seed in (0, 1)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.6 + 0.01 * seed, metrics=metrics) for seed in (0, 1)]
    # bp has three of four epochs when adagp ends: 4/3 of 0.305; Welch's t has one degree of freedom, 12.706
    assert told(runs) == [
        "After 3.65 s of training each, when adagp ends, bp leads with mean squared error 0.4067 (0.322 to 0.4914, 2 "
        "seeds), before adagp with mean squared error 0.605 (0.5415 to 0.6685, 2 seeds).",
        "bp wins: the difference is 0.1983 (95% interval 0.09245 to 0.3042).",
    ]


def test_no_clear_winner(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.8 + 0.1 * seed) for seed in (0, 1)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.55 + 0.1 * seed) for seed in (0, 1)]
    judgement = told(runs)[1]
    assert judgement.startswith("No clear winner: bp is ahead of adagp by 3.75 points (95% interval -")
    assert judgement.endswith("the interval includes zero.")


def test_one_seed_one_method_and_no_epoch(write_run: Any, tmp_path: Any) -> None:
    runs = [write_run("bp", method="bp", best=0.8), write_run("ada", best=0.7)]
    assert told(runs)[1] == (
        "The difference is 10.00 points; without several seeds of both there is no telling it from chance."
    )
    assert told(runs[1:]) == ["Only adagp is here: 70.00% (one seed). A comparison needs a second method."]
    nothing = write_run("none", finished=False, done=0)
    assert told([nothing]) == ["No run has a finished epoch with a finite accuracy yet: there is nothing to compare."]


def test_the_first_moment_at_which_two_have_an_accuracy_counts(write_run: Any) -> None:
    runs = [write_run("fast", method="bp", epochs=2, pace=0.01), write_run("ada", best=0.8, pace=10.0)]
    assert told(runs)[0].startswith(
        "After 325 s of training each, when adagp ends, bp leads with 90.00% (one seed), before adagp "
    )


def test_it_warns_of_unfinished_runs_and_uneven_clocks(write_run: Any) -> None:
    runs = [write_run("bp0", method="bp"), write_run("bp1", method="bp", seed=1, pace=0.2)]
    runs += [write_run("ada", finished=False, done=2)]
    assert told(runs)[2:] == [
        "Not finished yet, counted as far as they are: adagp.",
        "Mind the clock: a BP batch of bp took 2.0 times as long in one run as in another. The machine was not equally "
        "free, so seconds cannot be compared well.",
    ]


def test_what_is_not_finished_has_no_end(write_run: Any) -> None:
    runs = [write_run("bp", method="bp"), write_run("ada", finished=False, done=2)]
    (chapter,) = chapters(collect(runs))
    assert [moment.ends.label for moment in moments(chapter)] == ["bp"]
    (chapter,) = chapters(collect(runs[1:]))
    assert [moment.ends.label for moment in moments(chapter)] == ["adagp"]


def test_the_verdict_names_a_few(write_run: Any) -> None:
    methods = ("bp", "adagp", "remap", "skip", "replay", "noise", "zero")
    head = told([write_run(method, method=method) for method in methods])[0]
    assert head.count(" with ") == 5
    assert head.endswith(" and 2 more.")


def test_moments_that_are_close_count_once_and_are_few(write_run: Any) -> None:
    runs = [write_run(f"r{place}", method="bp", epochs=epochs) for place, epochs in enumerate((2, 4, 8, 16, 32))]
    runs += [write_run("near", method="skip", epochs=33)]
    (chapter,) = chapters(collect(runs))
    assert [moment.ends.label for moment in moments(chapter)] == [
        "bp (2 epochs)",
        "bp (4 epochs)",
        "bp (8 epochs)",
        "bp (32 epochs)",
    ]
