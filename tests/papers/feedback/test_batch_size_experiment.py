"""Worth by batch size: what is compared at each budget, and what is concluded from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from adagp.papers.feedback.batch_size_experiment import NAME, RISE, worth_parts
from adagp.papers.feedback.experiments import read_comparison
from adagp.program.reproduce.experiment import EXPERIMENTS, Workspace


@pytest.mark.parametrize("budget", ["quick", "standard", "full"])
def test_every_network_sees_the_same_samples_at_every_batch_size(budget: str, tmp_path: Path) -> None:
    for (model, size), part in worth_parts(budget).items():
        comparison = read_comparison(part.options, Workspace(tmp_path))
        config = comparison.config(comparison.reference, 0)
        assert (config.model, config.batch_size) == (model, size)
        assert size * comparison.batches == worth_parts(budget)[model, 32].options["batches"] * 32
        assert comparison.tuning is not None


def test_short_comparisons_have_enough_batches_and_predict_after_the_rise_of_the_rate(tmp_path: Path) -> None:
    for (model, size), part in worth_parts("short").items():
        comparison = read_comparison(part.options, Workspace(tmp_path))
        config = comparison.config(comparison.reference, 0)
        assert (config.model, config.batch_size) == (model, size)
        assert comparison.batches == max(51_200 // size, 100)
        assert part.options["warmup_batches"] == 2 * RISE * comparison.batches


def _write(workspace: Workspace, worths: dict[tuple[str, int], float | None]) -> None:
    (workspace.out / "parts").mkdir(exist_ok=True)
    for key, worth in worths.items():
        record: dict[str, Any] = {"accuracy_mean": 0.5, "rho_squared": 0.3, "noise_scale": 400.0}
        names = ("bp", "feedback@1:1", "feedback@2:1")
        report = {
            "regimes": {"batches": {"methods": dict.fromkeys(names, record)}},
            "worth": {"methods": {"feedback@1:1": {"worth": worth, "interval": [None, None]}}},
            "platforms": {},
            "seeds": 2,
            "batches": 30,
            "model": key[0],
            "dataset": "digits",
        }
        workspace.result_file(worth_parts("quick")[key]).write_text(json.dumps({"result": report}))


@pytest.mark.parametrize(
    ("large", "verdict", "reason"),
    [(0.7, "holds", "digits_cnn 0.40 to 0.70; 2 seeds"), (0.3, "does not hold", "digits_cnn 0.40 to 0.30; 2 seeds")],
)
def test_conclusions(large: float, verdict: str, reason: str, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    _write(workspace, {("digits_cnn", 32): 0.4, ("digits_cnn", 128): large})
    outcome = EXPERIMENTS[NAME].conclude("quick", workspace)
    assert [(one.verdict, one.reason) for one in outcome.verdicts] == [(verdict, reason)]
    assert [(row["batch_size"], row["method"], row["worth"]) for row in outcome.rows] == [
        (32, "feedback@1:1", 0.4),
        (32, "feedback@2:1", None),
        (128, "feedback@1:1", large),
        (128, "feedback@2:1", None),
    ]
    assert outcome.missing == ""
    outcome.draw()


def test_a_conclusion_from_one_batch_size_says_what_is_missing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert not EXPERIMENTS[NAME].enough("quick", workspace)  # type: ignore[misc]
    _write(workspace, {("digits_cnn", 32): 0.4})
    assert EXPERIMENTS[NAME].enough("quick", workspace)  # type: ignore[misc]
    outcome = EXPERIMENTS[NAME].conclude("quick", workspace)
    assert outcome.missing == "1 of 2 comparisons are not finished"
    assert outcome.verdicts[0].reason == "no worth was found; 2 seeds"
