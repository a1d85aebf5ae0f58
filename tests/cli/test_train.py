"""`adagp train` where all goes well."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.cli.progress import divergence
from adagp.models import build_model
from adagp.program.run.folder import FILES, LOCK

Program = Callable[..., Any]

STABLE = {
    "run", "command", "dataset", "model", "method", "seed", "epochs", "parameters", "train_loss", "train_accuracy",
    "test_loss", "test_accuracy", "best_test_accuracy", "seconds", "seconds_by_phase", "samples_per_second", "batches",
    "sites",
}  # fmt: skip
"""Fields of the JSON document that scripts may rely on."""


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def strict(text: str) -> Any:
    """Read JSON as the standard has it: without NaN and Infinity."""
    return json.loads(text, parse_constant=no_constant)


@pytest.mark.medium
def test_json_is_one_document_with_stable_fields(program: Program, short: tuple[str, ...]) -> None:
    ended = program("train", *short, "--json", "--out", "run", "--metrics-every", "1")
    assert ended.code == 0
    summary = strict(ended.out)
    assert set(summary) >= STABLE
    assert summary["run"] == "run"
    assert summary["command"] == (
        "adagp train --epochs 2 --warmup 1 --ratio 1:1 --batch-size 256 --width 0.25 --metrics-every 1"
    )
    assert 0 <= summary["test_accuracy"] <= summary["best_test_accuracy"] <= 1
    assert summary["batches"] == {"bp": 7, "gp": 3, "guarded": 0, "warmup": 5}
    assert set(summary["seconds_by_phase"]) == {"warmup", "bp", "gp", "data", "evaluation"}
    assert summary["seconds"] == pytest.approx(sum(summary["seconds_by_phase"].values()))
    assert set(summary["samples_per_second"]) == {"warmup", "bp", "gp"}
    assert list(summary["sites"]) == ["conv1", "conv2", "conv3", "fc"]
    for figures in summary["sites"].values():
        assert set(figures) == {"cosine", "norm_ratio", "mse", "mape", "cosine_previous"}
    assert strict(Path("run/summary.json").read_text()) == summary


def test_without_json_standard_output_stays_empty(program: Program, short: tuple[str, ...]) -> None:
    ended = program("train", *short, "--out", "run")
    assert ended.out == ""
    assert "digits_cnn on digits, method feedback" in ended.err
    assert ended.err.endswith("Run folder: run\nNext: adagp report run\n")


def test_a_run_that_diverged_says_so(program: Program) -> None:
    ended = program("train", "--lr", "100", "--batches", "12", "--width", "0.25", "--out", "run")
    assert ended.code == 0
    assert re.search(r"Training diverged: the training loss is .* in epoch 1\. Lower --lr, which was 100\.", ended.err)


def test_a_loss_that_comes_back_has_diverged_too() -> None:
    rows = [{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate((2.0, 1e18, 170.0))]
    assert divergence(rows) == "the training loss is 1e+18 in epoch 2"
    assert divergence([{"epoch": 0, "train_loss": None}]) == "the training loss is not a number in epoch 1"
    assert divergence(rows[:1]) == ""


def test_one_epoch_is_enough(program: Program) -> None:
    """Everybody's smoke test: the warm-up is a share of its batches."""
    ended = program("train", "--epochs", "1", "--width", "0.25", "--batch-size", "128", "--out", "run", "--json")
    assert ended.code == 0, ended.err
    batches = strict(ended.out)["batches"]
    assert (batches["warmup"], batches["gp"] + batches["guarded"] > 0) == (1, True)
    assert "Training diverged" not in ended.err


def test_the_run_folder_is_complete(finished: Path) -> None:
    assert sorted(path.name for path in finished.iterdir()) == sorted([LOCK, *FILES])
    config = strict((finished / "config.json").read_text())
    assert config["command"] == "adagp train --epochs 2 --warmup 1 --ratio 1:1 --batch-size 256 --width 0.25"
    assert (config["epochs"], config["dataset"], config["data_dir"]) == (2, "digits", None)
    assert {"adagp", "python", "torch", "numpy", "platform", "threads"} <= set(
        strict((finished / "versions.json").read_text())
    )
    rows = [strict(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["label"]) for row in rows] == [(0, "warm-up"), (1, "1:1")]
    with (finished / "metrics.csv").open() as file:
        assert [row["batches.gp"] for row in csv.DictReader(file)] == ["0", "3"]
    with (finished / "sites.csv").open() as file:
        assert [row["site"] for row in csv.DictReader(file)] == ["conv1", "conv2", "conv3", "fc"] * 2


def test_the_trained_weights_load_without_adagp(finished: Path) -> None:
    weights = torch.load(finished / "model.pt", weights_only=True)
    model = build_model("digits_cnn", classes=10, image=(1, 8, 8), width=0.25)
    assert list(weights) == list(model.state_dict())
    model.load_state_dict(weights)


def test_the_same_command_gives_the_same_weights(program: Program, finished: Path) -> None:
    command = strict((finished / "config.json").read_text())["command"].split()
    assert program(*command[1:], "--out", "again").code == 0
    again, before = (torch.load(path / "model.pt", weights_only=True) for path in (Path("again"), finished))
    assert all(torch.equal(again[name], before[name]) for name in before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("method", ["feedback", "adagp"])
def test_a_compiled_run_is_the_same_but_for_rounding(program: Program, short: tuple[str, ...], method: str) -> None:
    torch._dynamo.reset()
    for name, more in (("plain", ()), ("compiled", ("--compile",))):
        assert program("train", *short, "--method", method, *more, "--out", name).code == 0
    plain, compiled = (torch.load(Path(name) / "model.pt", weights_only=True) for name in ("plain", "compiled"))
    torch.testing.assert_close(compiled, plain, rtol=1e-2, atol=1e-3)


def test_an_existing_run_is_not_overwritten(program: Program, finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    ended = program("train", "--method", "bp", "--out", finished)
    assert ended.code == 2
    assert ended.err == (
        f"error: '{finished}' holds a run already. Give another --out, --resume {finished} to continue it, "
        "or --force to delete it and start again.\n"
    )
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_force_starts_anew(program: Program, finished: Path, short: tuple[str, ...]) -> None:
    assert program("train", *short[:4], "--method", "bp", "--epochs", "1", "--out", finished, "--force").code == 0
    summary = strict((finished / "summary.json").read_text())
    assert (summary["method"], summary["epochs"], summary["batches"]["gp"]) == ("bp", 1, 0)
    assert len((finished / "metrics.jsonl").read_text().splitlines()) == 1


def test_without_out_runs_get_folders_of_their_own(program: Program, short: tuple[str, ...]) -> None:
    found = [strict(program("train", *short, "--json").out)["run"] for _ in range(2)]
    assert found == ["runs/digits-digits_cnn-feedback-s0", "runs/digits-digits_cnn-feedback-s0-2"]


def test_the_command_line_wins_over_the_configuration_file(program: Program) -> None:
    Path("run.toml").write_text(
        'method = "remap"\nepochs = 9\nbatch-size = 256\nwidth = 0.25\nwarmup = 1\nratio = "1:1"\nseed = 3\n'
    )
    ended = program("train", "--config", "run.toml", "--epochs", "2", "--method", "adagp", "--json")
    assert ended.code == 0
    config = strict(Path(strict(ended.out)["run"], "config.json").read_text())
    chosen = ("method", "epochs", "batch_size", "width", "warmup", "ratio", "seed", "lr")
    assert [config[name] for name in chosen] == ["adagp", 2, 256, 0.25, 1, "1:1", 3, 1e-3]


@pytest.mark.medium
def test_remap_alternates_epochs(program: Program, short: tuple[str, ...]) -> None:
    options = ("--method", "remap", "--ratio", "epochs:1:1", "--epochs", "3")
    summary = strict(program("train", *short, *options, "--json").out)
    assert summary["batches"] == {"bp": 10, "gp": 5, "guarded": 0, "warmup": 5}


def test_a_run_that_diverges_is_still_json(program: Program, short: tuple[str, ...]) -> None:
    """Its losses are not finite, which JSON cannot say; resuming the finished run tells the same."""
    ended = program("train", *short, "--lr", "1e30", "--out", "run", "--json")
    summary = strict(ended.out)
    assert summary["test_loss"] is None
    assert summary["batches"]["guarded"] == 3
    for line in Path("run/metrics.jsonl").read_text().splitlines():
        assert strict(line)["train_loss"] is None
    again = program("train", "--resume", "run", "--json")
    assert strict(again.out) == summary
    assert "test loss not finite" in again.err


@pytest.mark.medium
def test_a_fresh_process_prints_only_json(python: Callable[..., Any], tmp_path: Path, short: tuple[str, ...]) -> None:
    ended = python("-m", "adagp", "train", *short, "--json", "--out", tmp_path / "run")
    assert ended.returncode == 0
    assert strict(ended.stdout)["run"] == str(tmp_path / "run")


def test_batches_alone_are_enough(program: Program) -> None:
    """They are less than an epoch, so the warm-up is a share of them; the run folder says how many."""
    ended = program("train", "--batches", "20", "--width", "0.25", "--out", "run", "--json")
    assert ended.code == 0, ended.err
    summary = strict(ended.out)
    assert summary["batches"]["warmup"] == 2
    assert summary["batches"]["gp"] + summary["batches"]["guarded"] == 9
    assert summary["command"] == "adagp train --batches 20 --warmup-batches 2 --width 0.25"


def test_an_evaluation_limit(program: Program, short: tuple[str, ...]) -> None:
    whole, some, same = (
        strict(program("train", *short, "--json", *more).out)
        for more in ((), ("--test-samples", "60"), ("--test-samples", "1000"))
    )
    assert round(60 * some["test_accuracy"], 9).is_integer()
    assert some["test_loss"] != whole["test_loss"]
    assert same["test_loss"] == whole["test_loss"], "there are 360"
    assert [one["train_loss"] for one in (some, same)] == [whole["train_loss"]] * 2
    assert some["command"].endswith(" --test-samples 60")
    assert program("train", "--test-samples", "0").err == "error: --test-samples is 0; it must be 1 or more.\n"
