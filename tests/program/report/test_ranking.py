import json
from pathlib import Path
from typing import Any

import pytest

from adagp.program.compare.verdict import SIGNIFICANCE
from adagp.program.report.ranking import Headline, equal_batches, equal_time, moments, value_at, verdict
from adagp.program.report.run_groups import Chapter, chapters
from adagp.program.run.metrics import Metric
from adagp.program.run.record import collect


def only(paths: list[Any]) -> Chapter:
    (chapter,) = chapters(collect(paths))
    return chapter


def test_the_value_at_a_time_is_that_of_the_last_epoch_before(write_run: Any) -> None:
    (run,) = collect([write_run("one", method="bp", best=0.8)])  # 1.1 s an epoch
    at = [value_at(run, seconds) for seconds in (1.0, 1.1, 2.3, 99.0)]
    assert at == [None, pytest.approx(0.2), pytest.approx(0.4), pytest.approx(0.8)]


def test_equal_time_is_that_of_backprop(write_run: Any) -> None:
    runs = [write_run("bp", method="bp"), write_run("ada"), write_run("short", method="bp", epochs=2)]
    moment = equal_time(only(runs))
    assert moment is not None
    assert moment.ends.label == "bp (4 epochs)"
    assert moment.seconds == pytest.approx(4.4)
    moment = equal_time(only([write_run("a", method="remap"), write_run("b", method="skip", epochs=2)]))
    assert moment is not None
    assert moment.ends.label == "skip"


def test_equal_batches_are_where_most_methods_end(write_run: Any) -> None:
    runs = [
        write_run("bp", method="bp", best=0.8),
        write_run("ada", best=0.6),
        write_run("half", method="bp", epochs=2),
    ]
    same = equal_batches(only(runs))
    assert same is not None
    assert (same.batches, same.ended) == (40, True)
    assert [(group.label, values) for group, values in same.values] == [("bp (4 epochs)", (0.8,)), ("adagp", (0.6,))]


def test_unfinished_runs_are_compared_at_common_batches(write_run: Any) -> None:
    runs = [write_run("bp", method="bp", finished=False, done=3), write_run("ada", finished=False, done=2)]
    same = equal_batches(only(runs))
    assert same is not None
    assert (same.batches, same.ended) == (20, False)
    assert [group.label for group, _ in same.values] == ["bp", "adagp"]
    assert equal_batches(only(runs[:1])) is None


def test_unfinished_runs_have_no_end_time(write_run: Any) -> None:
    runs = [write_run("bp", method="bp"), write_run("ada", finished=False, done=2)]
    assert [moment.ends.label for moment in moments(only(runs))] == ["bp"]
    assert [moment.ends.label for moment in moments(only(runs[1:]))] == ["adagp"]


def test_similar_end_times_count_once_and_are_few(write_run: Any) -> None:
    runs = [write_run(f"r{place}", method="bp", epochs=epochs) for place, epochs in enumerate((2, 4, 8, 16, 32))]
    runs += [write_run("near", method="skip", epochs=33)]
    assert [moment.ends.label for moment in moments(only(runs))] == [
        "bp (2 epochs)",
        "bp (4 epochs)",
        "bp (8 epochs)",
        "bp (32 epochs)",
    ]


def test_intervals_are_clipped_to_possible_values(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.5 + 0.49 * seed) for seed in (0, 1)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.01 + 0.1 * seed) for seed in (0, 1)]
    moment = equal_time(only(runs))
    assert moment is not None
    for _, _, one in moment.ranking:
        assert one.low is not None
        assert one.high is not None
        assert 0 <= one.low < one.mean < one.high <= 1


def told(paths: list[Any]) -> Headline:
    (chapter,) = chapters(collect(paths))
    return verdict(chapter)


def findings(paths: list[Any]) -> list[str]:
    return [f"{one.place}: {one.text}" for one in told(paths).findings]


def test_a_clear_winner_at_equal_batches_and_at_equal_time(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.90 + 0.01 * seed) for seed in (0, 1, 2)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.60 + 0.01 * seed) for seed in (0, 1, 2)]
    # Student's t of two degrees, 4.303, times 0.01 / sqrt(3); of the difference, Welch's t of four, 2.776
    assert findings(runs) == [
        "At equal batches, 40 each: bp wins with 91.00% (88.52 to 93.48, 3 seeds), 30.00 points (27.73 to 32.27) ahead of "
        "adagp with 61.00% (58.52 to 63.48, 3 seeds).",
        "At equal time, the 4.4 s that bp takes: bp wins with 91.00% (88.52 to 93.48, 3 seeds), 30.00 points (27.73 to "
        "32.27) ahead of adagp with 61.00% (58.52 to 63.48, 3 seeds).",
    ]
    assert told(runs).remarks == ()


def test_the_two_findings_may_differ(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.80 + 0.01 * seed, pace=0.01) for seed in (0, 1, 2)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.90 + 0.01 * seed, pace=0.05) for seed in (0, 1, 2)]
    batches, time = findings(runs)
    assert batches.startswith("At equal batches, 40 each: adagp wins with 91.00%")
    assert time.startswith("At equal time, the 0.8 s that bp takes: bp wins with 81.00%")


def test_the_lower_error_wins(write_run: Any) -> None:
    metrics = (Metric("mean_squared_error", higher_is_better=False),)
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.3 + 0.01 * seed, metrics=metrics) for seed in (0, 1)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.6 + 0.01 * seed, metrics=metrics) for seed in (0, 1)]
    assert findings(runs)[0] == (
        "At equal batches, 40 each: bp wins with mean squared error 0.305 (0.2415 to 0.3685, 2 seeds), 0.3 (0.2696 to "
        "0.3304) ahead of adagp with mean squared error 0.605 (0.5415 to 0.6685, 2 seeds)."
    )


def test_without_a_significant_difference_there_is_no_winner(write_run: Any) -> None:
    runs = [write_run(f"bp{seed}", method="bp", seed=seed, best=0.8 + 0.1 * seed) for seed in (0, 1)]
    runs += [write_run(f"ada{seed}", seed=seed, best=0.75 + 0.1 * seed) for seed in (0, 1)]
    runs += [write_run(f"zero{seed}", method="zero", seed=seed, best=0.1 + 0.001 * seed) for seed in (0, 1)]
    text = findings(runs)[0]
    assert text.startswith(
        "At equal batches, 40 each: no clear winner between bp with 85.00% (21.47 to 100.00, 2 seeds) and adagp with 80.00%"
    )
    assert "wins" not in text
    assert "leads" not in text
    assert " points (-" in text
    assert ") apart; behind them zero with 10.05%" in text


def test_methods_that_are_clearly_behind_are_listed_apart(write_run: Any) -> None:
    runs = [
        write_run(f"{method}{seed}", method=method, seed=seed, best=best + 0.01 * seed)
        for method, best in (("bp", 0.9), ("adagp", 0.9), ("skip", 0.901), ("zero", 0.1))
        for seed in (0, 1, 2)
    ]
    text = findings(runs)[0]
    assert text.startswith("At equal batches, 40 each: no clear winner among skip with 91.10%")
    assert "; behind them zero with 11.00%" in text


def test_one_seed_one_method_and_no_epoch(write_run: Any, tmp_path: Any) -> None:
    runs = [write_run("bp", method="bp", best=0.8), write_run("ada", best=0.7)]
    assert findings(runs)[0] == (
        "At equal batches, 40 each: bp with 80.00% (one seed) and adagp with 70.00% (one seed); several seeds of each "
        "are needed to tell a difference from chance."
    )
    assert findings(runs[1:]) == [
        "One method alone: adagp with 70.00% (one seed). A comparison needs a second method.",
    ]
    nothing = write_run("none", finished=False, done=0)
    assert findings([nothing]) == ["Nothing to compare: no run has a finished epoch with a finite accuracy yet."]


def test_unfinished_runs_are_marked(write_run: Any) -> None:
    runs = [write_run("bp", method="bp", finished=False, done=1, epochs=20)]
    assert findings(runs) == [
        "One method alone: bp with 4.50% (one seed), 1 of 20 epochs so far. A comparison needs a second method."
    ]
    runs += [write_run("ada", finished=False, done=2, epochs=20)]
    assert [one.place for one in told(runs).findings] == [
        "At equal batches, 10 each so far",
        "At equal time, 1.1 s so far",
    ]
    assert told(runs).remarks == (
        "Not finished yet, compared at their latest epoch: bp (1 of 20 epochs), adagp (2 of 20 epochs).",
    )


def test_warnings_of_unfinished_runs_and_uneven_timing(write_run: Any) -> None:
    runs = [write_run("bp0", method="bp"), write_run("bp1", method="bp", seed=1, pace=0.2)]
    runs += [write_run("ada", finished=False, done=2)]
    assert told(runs).remarks == (
        "Not finished yet, compared at their latest epoch: adagp (2 of 4 epochs).",
        "No ranking at equal time: a BP batch of bp took 2.0 times as long in one run as in another, so the machine was not "
        "equally loaded.",
    )
    assert [finding.place for finding in told(runs).findings] == ["At equal batches, 20 each so far"]


def test_the_verdict_of_a_comparison_is_its_own(write_run: Any, tmp_path: Path) -> None:
    """Its probe and its tuning runs are not methods; the sentences are those that `adagp compare` prints."""
    (tmp_path / "comparison.json").write_text('{"entries": [{"name": "bp"}, {"name": "feedback@1:1"}]}')
    for seed in (0, 1):
        write_run(f"runs/bp-40-seed{seed}", method="bp", seed=seed, batches=40)
        write_run(
            f"runs/feedback-1-1-40-seed{seed}", method="feedback", ratio="1:1", seed=seed, batches=40, metrics_every=0
        )
    write_run("probe", method="bp", batches=3)
    write_run("tuning/bp-1", method="bp", lr=0.5)
    (chapter,) = chapters(collect([tmp_path]))
    assert [(group.label, len(group.runs)) for group in chapter.groups] == [("bp", 2), ("feedback@1:1", 2)]
    assert verdict(chapter).findings[0].place == "At equal batches, 40 each", "it is not finished"
    rows = {
        "bp": {"method": "bp", "accuracy_mean": 0.9},
        "feedback@1:1": {"method": "feedback", "accuracy_mean": 0.8, "ahead_low": -0.2, "ahead_high": -0.1},
    }
    document = {"batches": 40, "seeds": 2, "regimes": {"batches": {"methods": rows}}}
    (tmp_path / "report.json").write_text(json.dumps(document))
    headline = verdict(chapter)
    (finding,) = headline.findings
    assert (finding.place, finding.text) == (
        "At equal batches (40 each)",
        "bp reaches accuracy 90.00%; feedback@1:1 80.00% (behind).",
    )
    assert headline.remarks == (SIGNIFICANCE,)


def test_a_sentence_lists_at_most_five_methods(write_run: Any) -> None:
    methods = ("bp", "adagp", "remap", "skip", "replay", "noise", "zero")
    text = findings([write_run(method, method=method) for method in methods])[0]
    assert text.count(" with ") == 5
    assert " and 2 more; several seeds" in text
