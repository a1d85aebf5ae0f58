"""The notebooks run from the first cell to the last, and are stored with what they show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[list[str]]:
    """Return what a cell shows, by kind: which texts, tables and pictures."""
    return [sorted(output.get("data", {})) or [output["output_type"]] for output in cell["outputs"]]


def test_notebook_names() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_loop", "pipeline", "simulate_and_explore", "train_and_compare"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_outputs_in_order(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    shown = json.dumps([cell["outputs"] for cell in cells])
    for private in ("/home/", "/root", "/tmp/", "/work/", "site-packages", "Traceback", "Warning"):
        assert private not in shown


@pytest.mark.slow
def test_notebooks_run_and_show_the_same_kinds_of_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Callable[..., Any]
) -> None:
    monkeypatch.chdir(ROOT)
    ended = python("-m", "tools.run_notebooks", tmp_path)
    assert ended.returncode == 0, ended.stderr
    for path in NOTEBOOKS:
        before, after = code_cells(path), code_cells(tmp_path / path.name)
        assert [cell["source"] for cell in before] == [cell["source"] for cell in after]
        assert [kinds(cell) for cell in before] == [kinds(cell) for cell in after]
