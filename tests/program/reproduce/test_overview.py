"""A report on all budgets, from records alone."""

import csv
from pathlib import Path

import pytest

from adagp.errors import RunError
from adagp.program.reproduce.experiment import choose
from adagp.program.reproduce.overview import write_overview
from adagp.program.reproduce.parts import Workspace, run_part

pytestmark = pytest.mark.medium


def test_the_largest_budget_decides(tmp_path: Path) -> None:
    """Products are arithmetic, the same at every budget; re-mapping's losses have no records, so they are not tested."""
    records, out = tmp_path / "records", tmp_path / "out"
    records.mkdir()
    experiments = choose(["lecture-products", "adagp-figure16", "remap-losses"])
    for part in choose(["adagp-figure16"])[0].parts("quick"):
        assert run_part(part, Workspace(records))
    rows = {row.path: row for row in write_overview(experiments, records, out)}
    assert rows["lecture-products/y/0/1"].outcome == "reproduced"
    assert rows["lecture-products/y/0/1"].budget == "full"
    assert rows["adagp-figure16/claims/cheaper"].outcome == "reproduced"
    waiting = rows["remap-losses/claims/falls"]
    assert (waiting.outcome, waiting.reason) == (
        "not tested",
        "the runs of remap-losses are not finished at this budget",
    )
    with (out / "published.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    text = (out / "verdicts.md").read_text()
    assert "### lecture-products, budget full" in text
    assert "| lecture | " in text
    assert not (out / "quick").exists() or not (out / "quick" / "lecture-products").exists()
    assert sorted(file.name for file in (out / "full" / "lecture-products").iterdir()) == [
        "figure.png",
        "figure.svg",
        "table.csv",
        "verdict.csv",
        "verdict.json",
    ]


def test_a_folder_of_one_budget_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "reproduce.json").write_text('{"budget": "quick"}')
    with pytest.raises(RunError) as caught:
        write_overview(choose(["lecture-products"]), None, tmp_path)
    assert str(caught.value) == (
        f"'{tmp_path}' holds results of one budget; give another --out for a report on all, or --budget."
    )
