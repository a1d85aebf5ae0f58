"""The demonstration and its pictures, small."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.cli.demo import NEXT
from adagp.errors import RunError
from adagp.program.demo import conclusion, demo_comparison, prepare_folder
from adagp.program.figures.curves import draw
from adagp.program.run import RunFolder
from adagp.program.run.metrics import Metric

ROW = {"accuracy_mean": 0.9, "batches": 440, "gp_batches": 198}


def test_the_demonstration_compares_on_one_schedule() -> None:
    comparison = demo_comparison(seeds=2, batches=440)
    configs = {candidate.name: comparison.config(candidate, 0) for candidate in comparison.candidates}
    assert list(configs) == ["bp", "feedback", "adagp", "skip"]
    assert [config.method for config in configs.values()] == list(configs)
    assert {config.ratio for name, config in configs.items() if name != "bp"} == {"1:1"}


def test_three_sentences_end_it() -> None:
    rows = {
        name: {**ROW, "accuracy_mean": value}
        for name, value in zip(("bp", "feedback", "adagp", "skip"), (0.9, 0.8, 0.7, 0.6), strict=True)
    }
    document = {"regimes": {"batches": {"methods": rows}}}
    assert conclusion(document, 1.125) == [
        "feedback predicted the gradient of 45% of its batches, without a backward pass, and reached 80.0%; backprop on every "
        "batch reached 90.0%.",
        "Leaving those batches out reached 60.0%, and ADA-GP's predictor, the paper's method, 70.0%: the "
        "difference to skip is what the predictions are worth.",
        "On the modelled accelerator (design max) the run of feedback would be 1.12 times as fast as backprop's; "
        "docs/results.md has results for larger networks.",
    ]


@pytest.mark.medium
@pytest.mark.usefixtures("forked_jobs")
def test_the_demonstration_trains_compares_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    arguments = ["demo", "--out", str(out), "--seeds", "1", "--batches", "60"]
    ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ended.exit_code == 0
    for word in ("feedback", "adagp", "skip", "times as fast", "report.html", f"Next: {NEXT}"):
        assert word in ended.stdout
    page = (out / "report.html").read_text("utf-8")
    assert "digits_cnn on digits" in page
    assert "At equal batches (60 each)" in page
    with pytest.raises(
        RunError, match="already holds a demonstration. Give another --out, or --force to run it again."
    ):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_folder_of_the_users_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("data")
    prepare_folder(tmp_path, force=True)
    assert (tmp_path / "mine.txt").is_file(), "it holds no demonstration"


def test_a_run_without_a_finished_epoch_cannot_be_drawn(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_json("config.json", {})
    with pytest.raises(RunError, match="has no finished epoch yet: there is nothing to draw.$"):
        draw([folder.path], tmp_path / "pictures")


def test_runs_of_other_metrics_and_damaged_ones_cannot_be_drawn(write_run: Any, tmp_path: Path) -> None:
    runs = [write_run("a"), write_run("b", metrics=(Metric("squared_error", higher_is_better=False),))]
    message = r"^the runs have different metrics \(accuracy, squared error\); draw them separately.$"
    with pytest.raises(RunError, match=message):
        draw(runs, tmp_path / "pictures")
    (runs[0] / "config.json").write_text("{")
    with pytest.raises(
        RunError, match=f"^the run in '{runs[0]}' is damaged: config.json cannot be read: it is not JSON"
    ):
        draw(runs[:1], tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()
