"""The demonstration and its pictures, small."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.errors import OptionError, RunError
from adagp.program.demo import BATCHES, plan
from adagp.program.figures.curves import draw
from adagp.program.run import RunFolder
from adagp.program.run.metrics import Metric
from adagp.program.run.record import read_whole_run
from adagp.program.train.session import Session


def test_the_plan_counts_what_the_sessions_do() -> None:
    contenders = plan(seeds=2, epochs=20)
    assert {name: [config.seed for config in configs] for name, configs in contenders.items()} == {
        "bp": [0, 1],
        "adagp": [0, 1],
        "bp short": [0, 1],
    }
    assert Session(contenders["adagp"][0]).task.batches_per_epoch == BATCHES
    assert contenders["bp short"][0].epochs == 10  # 451 BP batches of 44 an epoch


@pytest.mark.slow
@pytest.mark.usefixtures("forked_jobs")
def test_the_demonstration_trains_compares_and_draws(tmp_path: Path) -> None:
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--seeds", "1", "--epochs", "3"]
    ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ended.exit_code == 0
    for word in ("warm-up", "adagp", "bp short", "curves.png", "sites-adagp-seed0.svg", "report.html"):
        assert word in ended.stdout
    assert "digits_cnn on digits" in (tmp_path / "demo" / "report.html").read_text("utf-8")
    pictures = sorted(path.name for path in (tmp_path / "demo" / "pictures").iterdir())
    assert pictures == ["curves.png", "curves.svg", "sites-adagp-seed0.png", "sites-adagp-seed0.svg"]
    with pytest.raises(
        RunError, match="holds a demonstration already. Give another --out, or --force to make it again."
    ):
        CliRunner().invoke(app, arguments, catch_exceptions=False)

    run = tmp_path / "demo" / "adagp-seed0"
    again = draw([run], tmp_path / "again", formats=["svg"])
    assert [path.name for path in again] == ["curves.svg", "sites-adagp-seed0.svg"]
    texts = {"".join(element.itertext()).strip() for element in ElementTree.parse(again[0]).iter()}
    assert texts, "an SVG file that parses"
    epochs = read_whole_run(run, "test").epochs
    assert [epoch.number for epoch in epochs] == [1, 2, 3]
    assert epochs[0].predicted_share == 0
    assert epochs[1].predicted_share == pytest.approx(36 / 44)  # 4:1
    assert all(epoch.over_sites("cosine") for epoch in epochs)


def test_too_small_a_demonstration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="^the demo needs at least 1 seed and 2 epochs; got 5 and 1.$"):
        CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--epochs", "1"], catch_exceptions=False)


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
