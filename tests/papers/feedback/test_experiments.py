"""Where feedback pays: what is compared at each budget, and what is concluded from it."""

from pathlib import Path
from typing import Any

import pytest

from adagp.papers.feedback import experiments as feedback_worth
from adagp.papers.feedback.experiments import LONG, PLATFORMS, compare_methods, comparison_part, read_comparison
from adagp.program.reproduce.experiment import EXPERIMENTS, Part, Workspace


@pytest.mark.parametrize("name", [PLATFORMS, LONG])
@pytest.mark.parametrize("budget", ["quick", "standard", "full"])
def test_every_comparison_is_one(name: str, budget: str, tmp_path: Path) -> None:
    found = read_comparison(comparison_part(name, budget).options, Workspace(tmp_path))
    assert found.tuning is not None
    assert found.reference.name == "bp"
    assert found.data_dir is None
    on_gpu = read_comparison(comparison_part(name, budget).options, Workspace(tmp_path, Path("data"), "cuda"))
    assert (on_gpu.config(on_gpu.reference, 0).device, on_gpu.data_dir) == ("cuda", "data")


def test_conclusions(pretend: Any) -> None:
    workspace = pretend(EXPERIMENTS[PLATFORMS], "quick")
    outcome = EXPERIMENTS[PLATFORMS].conclude("quick", workspace)
    assert [(one.quantity, one.verdict) for one in outcome.verdicts] == [
        ("accuracy at equal cycles, accelerator", "holds"),
        ("accuracy at equal cycles, pipeline", "holds"),
        ("worth of a GP batch", "holds"),
    ]
    assert outcome.verdicts[2].reason == "worth 0.6 (0.5 to not known); accelerator pays (break-even 0.44)"
    assert outcome.verdicts[0].reason == (
        "bp 50.00 % (48.00 to 52.00) after 100 batches, feedback@1:1 60.00 % (58.00 to 62.00) after 101 batches; "
        "points ahead of bp, seed by seed: feedback@1:1 +10.00 (+9.00 to +11.00); "
        "GP batches left out: skip@1:1 70.00 % (68.00 to 72.00) after 102 batches; 3 seeds"
    )
    assert [(row["regime"], row["method"], row["lr"]) for row in outcome.rows][:2] == [
        ("batches", "bp", 0.01),
        ("batches", "feedback@1:1", 0.01),
    ]


@pytest.mark.slow
@pytest.mark.medium  # trains eight short runs, each in a process of its own
def test_a_comparison_as_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback_worth, "RATES", (0.05, 0.1))
    options = {
        "experiment": "tiny",
        "methods": "bp,skip",
        "regimes": ("batches",),
        "dataset": "digits",
        "batches": 4,
        "seeds": 1,
    }
    part = Part(compare_methods, "tiny-quick", {**options, "batch_size": 256, "warmup_batches": 1, "ratio": "1:1"})
    assert compare_methods(part, Workspace(tmp_path, stop=lambda: True)) is None
    found = compare_methods(part, Workspace(tmp_path))
    assert found is not None
    assert list(found["regimes"]["batches"]["methods"]) == ["bp", "skip"]
