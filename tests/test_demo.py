"""The demonstration and its pictures, small."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.demo import BATCHES, plan
from adagp.errors import OptionError, RunError
from adagp.figures.curves import History, draw, figures_of
from adagp.run import RunFolder
from adagp.train.session import Session


def test_the_plan_counts_what_the_sessions_do() -> None:
    contenders = plan(seeds=2, epochs=20)
    assert {name: [config.seed for config in configs] for name, configs in contenders.items()} == {
        "bp": [0, 1],
        "adagp": [0, 1],
        "bp short": [0, 1],
    }
    assert Session(contenders["adagp"][0]).task.batches_per_epoch == BATCHES
    assert contenders["bp short"][0].epochs == 10  # 451 BP batches of 44 an epoch


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
        RunError, match="holds a demonstration already. Give another --out, or --force to make it anew."
    ):
        CliRunner().invoke(app, arguments, catch_exceptions=False)

    run = tmp_path / "demo" / "adagp-seed0"
    again = draw([run], tmp_path / "again", formats=["svg"])
    assert [path.name for path in again] == ["curves.svg", "sites-adagp-seed0.svg"]
    texts = {"".join(element.itertext()).strip() for element in ElementTree.parse(again[0]).iter()}
    assert texts, "an SVG file that parses"
    history = History.read(run)
    assert history.epochs == [1, 2, 3]
    assert history.shares[0] == 0
    assert history.shares[1] == pytest.approx(36 / 44)  # 4:1
    assert all(figures_of(row, "cosine") for row in history.rows)


def test_too_small_a_demonstration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="^the demonstration needs 1 seed and 2 epochs at least; got 0 and 20.$"):
        CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--seeds", "0"], catch_exceptions=False)


def test_a_run_without_a_finished_epoch_cannot_be_drawn(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_json("config.json", {})
    with pytest.raises(RunError, match="has no finished epoch yet: there is nothing to draw.$"):
        draw([folder.path], tmp_path / "pictures")
