"""A task of the user's own, judged by an error instead of an accuracy, through all commands."""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from adagp.core.registry import load_plugin
from adagp.data import DATASETS
from adagp.program.run import RunFolder
from adagp.program.tasks.base import TASKS
from adagp.program.train.session import Session, Silent, read_config

pytestmark = pytest.mark.medium

Program = Callable[..., Any]
MODULE = "examples.plugins.sine_regression"
OPTIONS = ("--plugin", MODULE, "--dataset", "sine")


@pytest.fixture(autouse=True)
def own_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget after the test what the plugin has registered."""
    for registry in (DATASETS, TASKS):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    monkeypatch.setattr("adagp.core.registry._loaded", [])
    sys.modules.pop(MODULE, None)
    yield
    sys.modules.pop(MODULE, None)


def without_seconds(folder: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in RunFolder(Path(folder)).rows()]


def test_it_is_trained_resumed_listed_and_drawn(program: Program) -> None:
    ended = program("train", *OPTIONS, "--epochs", "4", "--ratio", "1:1", "--warmup", "1", "--out", "whole", "--json")
    assert ended.code == 0, ended.err
    summary, rows = json.loads(ended.out), RunFolder(Path("whole")).rows()
    errors = [row["test_mean_squared_error"] for row in rows]
    assert summary["best_test_mean_squared_error"] == min(errors) < errors[0]
    assert summary["train_mean_squared_error"] == rows[-1]["train_mean_squared_error"]
    assert rows[0]["train_mean_squared_error"] == pytest.approx(rows[0]["train_loss"])  # equal batches: the same mean
    assert not any("accuracy" in name for name in (*summary, *rows[0]))
    ends = {"lowest": None, "highest": None}
    assert json.loads(Path("whole/config.json").read_text())["metrics"] == [
        {"name": "mean_squared_error", "unit": "", "higher_is_better": False, "title": "", **ends},
        {"name": "largest_error", "unit": "m", "higher_is_better": False, "title": "", **ends},
        {"name": "explained", "unit": "share", "higher_is_better": True, "title": "explained variance", **ends},
    ]
    told = " ".join(ended.err.split())
    assert f"test mean squared error {errors[-1]:.4g}, test largest error " in told
    assert f", test loss {errors[-1]:.4f}; " in told
    assert f"test largest error {summary['test_largest_error']:.4g} m" in told
    assert f"test explained variance {summary['test_explained']:.4f}" in told

    config, _ = read_config(RunFolder.open(Path("whole")), trust=True)
    session = Session(config)
    loop = session.start(Path("parts"))
    assert session.run(loop, Silent(), lambda: loop.trainer.done >= 11) is None
    assert program("train", "--plugin", MODULE, "--resume", "parts", "--trust").code == 0
    assert without_seconds("parts") == without_seconds("whole")

    assert re.search(r"sine +│ yes +│ - +│ +- │ +- │ +- │ \(made by its task\)", program("datasets").out)
    assert program("plot", "whole", "parts", "--out", "pictures").code == 0
    assert "<!-- test mean squared error -->" in Path("pictures/curves.svg").read_text()


@pytest.mark.usefixtures("forked_jobs")
def test_methods_are_compared_by_the_lower_error(program: Program) -> None:
    given = ("--methods", "bp,skip,replay", "--seeds", "1", "--regimes", "batches", "--epochs", "12", "--ratio", "4:1")
    more = ("--warmup-batches", "4", "--large-batch", "0", "--jobs", "2", "--out", "compared", "--target", "0.5")
    ended = program("compare", *OPTIONS, *given, *more)
    assert ended.code == 0, ended.err
    document = json.loads(Path("compared/report.json").read_text())
    (metric,) = document["metrics"]
    assert (metric["name"], metric["higher_is_better"]) == ("mean_squared_error", False)
    methods = document["regimes"]["batches"]["methods"]
    errors = {name: one["mean_squared_error_mean"] for name, one in methods.items()}
    assert errors["bp"] < errors["skip"]  # 96 batches against 23
    assert methods["bp"]["gap_closed"] == pytest.approx(1)
    expected = (errors["skip"] - errors["replay"]) / (errors["skip"] - errors["bp"])
    assert methods["replay"]["gap_closed"] == pytest.approx(expected)
    for record in document["runs"]:
        rows = RunFolder(Path(record["run"])).rows()
        reached = [row for row in rows if row["test_mean_squared_error"] <= 0.5]
        assert (record["seconds_to_target"] is not None) == bool(reached)
    assert methods["bp"]["target_share"] == 1
    with Path("compared/runs.csv").open(encoding="utf-8", newline="") as file:
        assert (
            mean(float(row["mean_squared_error"]) for row in csv.DictReader(file) if row["name"] == "bp")
            == errors["bp"]
        )
    text = Path("compared/comparison.md").read_text()
    assert "| method | mean squared error | ahead of bp | gap closed |" in text
    assert methods["skip"]["ahead_mean"] == pytest.approx(errors["bp"] - errors["skip"])
    assert "share of the mean squared error gap between skip and bp" in text
    assert "| reach 0.5 | after s |" in text
    assert "accuracy" not in text
    assert "<!-- test mean squared error -->" in Path("compared/pareto.svg").read_text()

    assert program("report", "compared/runs", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    for words in (
        "Mean squared error and time",
        "Loss and mean squared error",
        ">final mean squared error<",
        ">explained variance<",
    ):
        assert words in page
    assert "accuracy" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_a_target_is_checked_by_the_metric(program: Program) -> None:
    ended = program("compare", *OPTIONS, "--target", "nan")
    assert (ended.code, ended.err) == (2, "error: --target is nan; it must be a finite number.\n")


def test_an_evaluation_without_a_declared_metric_is_rejected_before_training(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_plugin(MODULE)
    task = sys.modules[MODULE].Regression
    monkeypatch.setattr(task, "evaluate", lambda self, model: {"loss": 1.0, "error": 2})
    ended = program("train", *OPTIONS, "--epochs", "3", "--method", "bp", "--out", "run")
    assert (ended.code, ended.err) == (
        2,
        "error: Regression.evaluate must return a number for 'mean_squared_error', which the task declares; "
        "it returned: loss (float), error (int).\n",
    )
    assert not Path("run").exists()
