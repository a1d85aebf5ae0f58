"""Figures of runs, methods and sites, by hand."""

from pathlib import Path
from typing import Any

import pytest

from adagp.program.compare.alignment import FIGURES
from adagp.program.compare.comparison import ComparedRun
from adagp.program.compare.methods import read_candidates
from adagp.program.compare.records import (
    ahead_record,
    aligned_record,
    gap_record,
    method_record,
    run_record,
    seconds_to,
)
from adagp.program.run import RunFolder, TrainConfig
from adagp.program.run.metrics import Metric
from adagp.program.run.record import read_run

ROWS: list[dict[str, Any]] = [
    {"epoch": 0, "test_accuracy": 0.5, "seconds": {"warmup": 2.0, "data": 0.5, "evaluation": 9.0}, "sites": {}},
    {"epoch": 1, "test_accuracy": 0.8, "seconds": {"gp": 1.0, "bp": 2.0, "data": 0.5, "evaluation": 9.0}, "sites": {}},
    {"epoch": 2, "test_accuracy": 0.7, "seconds": {"gp": 1.0, "bp": 2.0, "data": 0.5, "evaluation": 9.0}, "sites": {}},
]
SUMMARY = {
    "test_accuracy": 0.7,
    "test_loss": 0.9,
    "seconds_by_phase": {"warmup": 2.0, "gp": 2.0, "bp": 4.0, "data": 1.5, "evaluation": 27.0},
    "batches": {"warmup": 3, "bp": 9, "gp": 5, "guarded": 1},
    "peak_memory": 1000,
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_json("config.json", {})
    folder.write_json("summary.json", SUMMARY)
    folder.write_rows(ROWS)
    return folder


def test_the_time_to_a_target_excludes_evaluation(folder: RunFolder) -> None:
    run = read_run(folder.path, "run")
    assert seconds_to(0.5, run) == 2.5
    assert seconds_to(0.75, run) == 6.0
    assert seconds_to(0.9, run) is None


def test_the_record_of_a_run(folder: RunFolder) -> None:
    candidate = read_candidates("bp,quick:feedback@1:1")[1]
    run = ComparedRun(candidate, TrainConfig(method="feedback", batches=15, seed=4), folder)
    assert run.finished
    assert run_record(run, "batches", 0.75) == {
        "regime": "batches",
        "name": "quick",
        "method": "feedback",
        "batch_size": 32,
        "seed": 4,
        "accuracy": 0.7,
        "test_loss": 0.9,
        "seconds": 9.5,
        "batches": 15,
        "warmup_batches": 3,
        "bp_batches": 9,
        "gp_batches": 5,
        "guarded_batches": 1,
        "seconds_warmup": 2.0,
        "seconds_bp": 4.0,
        "seconds_gp": 2.0,
        "seconds_data": 1.5,
        "peak_memory": 1000,
        "seconds_to_target": 6.0,
        "run": str(folder.path),
    }


def record(name: str, seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("batches", "warmup_batches", "bp_batches", "gp_batches", "guarded_batches"), 10)
    seconds = dict.fromkeys(("seconds", "seconds_warmup", "seconds_bp", "seconds_gp", "seconds_data"), 2.0)
    plain: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "accuracy": accuracy,
        "peak_memory": 100,
        "seconds_to_target": None,
    }
    plain["batch_size"] = 64
    return {**plain, **counts, **seconds, **more}


def test_the_record_of_a_method() -> None:
    (candidate,) = read_candidates("bp")
    runs = [record("bp", 0, 0.5, seconds_to_target=4.0), record("bp", 1, 0.7, peak_memory=300)]
    found = method_record(candidate, runs, {"calibrated_seconds": 1.5}, 0.6)
    assert found is not None
    assert found["accuracy_mean"] == pytest.approx(0.6)
    assert (found["accuracy_low"], found["accuracy_high"]) == (0.0, 1.0)  # 0.6 ± 12.706 * 0.1, as far as it is possible
    assert (found["peak_memory_low"], found["peak_memory_high"]) == (0.0, pytest.approx(200 + 12.706 * 100, abs=1))
    assert found["batch_size"] == 64
    assert (found["runs"], found["calibrated_seconds"], found["peak_memory"]) == (2, 1.5, 200)
    assert (found["target_share"], found["seconds_to_target_mean"], found["seconds_to_target_low"]) == (0.5, 4.0, None)
    assert found["seconds_by_phase"] == {"warmup": 2.0, "bp": 2.0, "gp": 2.0, "data": 2.0}
    assert method_record(candidate, [], {}, None) is None
    without = method_record(candidate, runs[:1], {}, None)
    assert without is not None
    assert (without["accuracy_mean"], without["accuracy_low"], without["target_share"]) == (0.5, None, None)


def test_the_share_of_the_gap() -> None:
    candidates = read_candidates("bp,skip,feedback")
    runs = [record("bp", 0, 0.9), record("skip", 0, 0.7), record("feedback", 0, 0.8)]
    assert gap_record(candidates[2], candidates, runs) == {"gap_closed": pytest.approx(0.5), "gap_clear": False}
    assert gap_record(candidates[0], candidates, runs)["gap_closed"] == pytest.approx(1)
    assert gap_record(candidates[1], candidates, runs)["gap_closed"] == pytest.approx(0)
    # the third seed has no skip: it does not count
    runs += [record("bp", 1, 0.8), record("skip", 1, 0.59), record("feedback", 1, 0.7), record("feedback", 2, 0.1)]
    assert gap_record(candidates[2], candidates, runs) == {"gap_closed": pytest.approx(0.21 / 0.41), "gap_clear": True}
    nothing = {"gap_closed": None, "gap_clear": False}
    assert gap_record(candidates[2], candidates, [record(one.name, 0, 0.9) for one in candidates]) == nothing
    assert gap_record(candidates[2], candidates, runs[:2]) == nothing
    assert gap_record(candidates[2], (candidates[0], candidates[2]), runs) == nothing


def test_differences_from_backprop_are_paired_by_seed() -> None:
    """What a seed does to both alike does not count."""
    candidates = read_candidates("bp,feedback,skip")
    runs = [record("bp", seed, level) for seed, level in enumerate((0.5, 0.7, 0.9))]
    runs += [record("feedback", seed, level) for seed, level in enumerate((0.51, 0.72, 0.93))]
    found = ahead_record(candidates[1], candidates, runs)
    assert found["ahead_mean"] == pytest.approx(0.02)
    assert found["ahead_high"] - found["ahead_mean"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert ahead_record(candidates[1], candidates, runs, Metric("accuracy", higher_is_better=False))["ahead_mean"] == (
        pytest.approx(-0.02)
    )
    none = dict.fromkeys(("ahead_mean", "ahead_low", "ahead_high"))
    assert ahead_record(candidates[0], candidates, runs) == none
    assert ahead_record(candidates[2], candidates, runs) == none


def test_the_gap_of_a_metric_where_lower_is_better() -> None:
    candidates, error = read_candidates("bp,skip,feedback"), Metric("error", higher_is_better=False)
    values = {"bp": 0.2, "skip": 0.6, "feedback": 0.3}
    runs = [record(name, 0, 0.0, error=value) for name, value in values.items()]
    assert gap_record(candidates[2], candidates, runs, error)["gap_closed"] == pytest.approx(0.75)
    runs[0]["error"] = None  # not finite
    assert gap_record(candidates[2], candidates, runs, error)["gap_closed"] is None
    found = method_record(candidates[1], runs[1:2], {}, None, error)
    assert found is not None
    assert (found["error_mean"], found["error_low"]) == (0.6, None)


def test_each_schedule_has_its_own_gap() -> None:
    candidates = read_candidates("bp,skip@1:1,skip@4:1,feedback@4:1,dni")
    accuracies = {"bp": 0.9, "skip@1:1": 0.8, "skip@4:1": 0.5, "feedback@4:1": 0.7, "dni": 0.7}
    runs = [record(name, 0, accuracy) for name, accuracy in accuracies.items()]
    assert gap_record(candidates[3], candidates, runs)["gap_closed"] == pytest.approx(0.5)
    assert gap_record(candidates[4], candidates, runs)["gap_closed"] is None  # neither skip has its schedule


def figures(value: float | None) -> dict[str, float | None]:
    return dict.fromkeys(FIGURES, value)


def test_alignment_over_points_sites_and_seeds() -> None:
    first = {"points": [{"sites": {"a": figures(0.2), "b": figures(None)}}, {"sites": {"a": figures(0.4)}}]}
    second = {"points": [{"sites": {"a": figures(0.1), "b": figures(0.7)}}]}
    found = aligned_record([first, second])
    assert found["cosine_true"] == pytest.approx((0.3 + 0.4) / 2)
    assert found["cosine_true_high"] - found["cosine_true"] == pytest.approx(12.706 * 0.05, abs=1e-3)
    assert found["sites"]["a"]["cosine_true"] == pytest.approx(0.2)
    assert found["sites"]["b"]["ceiling_minibatch"] == pytest.approx(0.7)
    assert aligned_record([first])["cosine_true_low"] is None
    assert aligned_record([])["cosine_true"] is None
