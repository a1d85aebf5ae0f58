"""`adagp reproduce`, called as a user calls it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.program.reproduce.experiment import EXPERIMENTS

Program = Callable[..., Any]


def test_the_list_names_every_experiment() -> None:
    ended = CliRunner().invoke(app, ["reproduce", "list"])
    assert ended.exit_code == 0
    for name in EXPERIMENTS:
        assert name in ended.output
    assert "GPU days" in ended.output
    assert "  lecture: Lecture 11: Hardware Accelerator for DNN Training (course slides;" in ended.output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("adagp-figur16",),
            "error: unknown experiment 'adagp-figur16'. Did you mean 'adagp-figure16'? Choose from: ",
        ),
        (
            ("all", "--budget", "quik"),
            "error: unknown budget 'quik'. Did you mean 'quick'? Choose from: full,",
        ),
        (("all", "--jobs", "0"), "error: --jobs is 0; it must be 1 or more."),
        (
            ("adagp-table2", "--budget", "standard"),
            "error: at budget standard, adagp-table2 needs real data: data set ",
        ),
    ],
)
def test_wrong_options_end_before_any_work(arguments: tuple[str, ...], error: str, program: Program) -> None:
    ended = program("reproduce", *arguments)
    assert ended.code == 2
    assert ended.err.startswith(error)
    assert not Path("runs").exists()


@pytest.mark.medium
@pytest.mark.usefixtures("forked_jobs")
def test_an_experiment_from_start_to_end(tmp_path: Path) -> None:
    ended = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["reproduce", "adagp-table2", "--jobs", "1", "--out", str(tmp_path / "out")]
    )
    assert ended.exit_code == 0, ended.output
    assert "Parts: 1; finished earlier: 0; in parallel: 1." in ended.output
    assert "1 within, 3 outside, 5 not measured" in ended.output
    assert (tmp_path / "out" / "adagp-table2" / "figure.png").is_file()
