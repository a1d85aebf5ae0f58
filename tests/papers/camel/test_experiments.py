"""Runs next to a backbone that has seen half of the classes, continued after a stop; and what is computed at once."""

from pathlib import Path

import pytest

from adagp.papers.camel import experiments as camel
from adagp.program.reproduce.experiment import EXPERIMENTS, Workspace

pytestmark = pytest.mark.medium


def test_a_backbone_of_half_the_classes_and_its_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**camel.SETTINGS["quick"], "batch_size": 200}
    short["base"] = {**short["base"], "batches": 3}
    short["duplex"] = {**short["duplex"], "batches": 3, "branch_channels": 2}
    monkeypatch.setattr(camel, "SETTINGS", {"quick": short})
    chosen = ("branch", "branch, fixed stream", "branch only", "classifier only", "fine-tuning")
    monkeypatch.setattr(camel, "VARIANTS", {name: camel.VARIANTS[name] for name in chosen})
    part, workspace = camel._transfers("quick")[0], Workspace(tmp_path)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 5

    assert camel.transfer_runs(part, Workspace(tmp_path, stop=stop)) is None
    found = camel.transfer_runs(part, workspace)
    assert found is not None
    assert list(found) == list(chosen)
    assert found["branch, fixed stream"]["error"] == 0
    assert found["classifier only"]["error"] is None
    assert all(0 <= one["accuracy"] <= 100 for one in found.values())


def test_lifetimes_and_chips_are_computed_and_shown_without_a_verdict(tmp_path: Path) -> None:
    lifetimes = EXPERIMENTS["camel-lifetimes"].conclude("quick", Workspace(tmp_path))
    row = next(row for row in lifetimes.rows if (row["pixels"], row["array"]) == (7, 6))
    assert (row["t_b"], row["refreshes"]) == (pytest.approx(3.12), 0)
    hardware = EXPERIMENTS["camel-hardware"].conclude("quick", Workspace(tmp_path))
    assert [row["refreshes"] for row in hardware.rows] == [5, 1, 0, 0]
    assert hardware.rows[0]["energy_ratio"] < hardware.rows[-1]["energy_ratio"]
    assert {one.verdict for one in (*lifetimes.verdicts, *hardware.verdicts)} == {"not comparable"}
