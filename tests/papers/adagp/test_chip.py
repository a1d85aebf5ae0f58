"""Training on the chip as an experiment: a few small batches, next to the golden model and to torch."""

from pathlib import Path

import pytest

from adagp.errors import ToolError
from adagp.papers.adagp.chip_experiments import TRAINED, chip_part, conclude, train_on_chip
from adagp.program.reproduce.experiment import Part, Workspace
from adagp.program.run.documents import find_fault


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    small = {"array": "2x2", "predictor_array": "2x2", "widths": (4, 3, 10), "batch_size": 2}
    options = {**chip_part("quick").options, **small, "epochs": 2, "warmup_epochs": 1, "batches": 4}
    result = train_on_chip(Part(train_on_chip, "small", options), Workspace(tmp_path))
    assert result is not None
    assert find_fault(result, TRAINED) is None
    assert [(epoch["bp"], epoch["gp"], epoch["different_words"]) for epoch in result["epochs"]] == [
        (4, 0, 0),
        (2, 2, 0),
    ]
    for phase, batches in (("bp", 6), ("gp", 2)):
        assert (result[phase]["batches"], result[phase]["unequal_batches"]) == (batches, 0)
        assert result[phase]["cycles"] == result[phase]["model_cycles"] > 0


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ToolError("Amaranth is not installed.")

    monkeypatch.setattr("adagp.rtl.tools.need_amaranth", missing)
    part = chip_part("quick")
    assert train_on_chip(part, Workspace(tmp_path)) == {"missing": "Amaranth is not installed."}
    monkeypatch.setattr(Workspace, "result", lambda self, part: {"missing": "Amaranth is not installed."})
    outcome = conclude("quick", Workspace(tmp_path))
    assert {one.verdict for one in outcome.verdicts} == {"not measured"}
    assert {one.reason for one in outcome.verdicts} == {"Amaranth is not installed."}
