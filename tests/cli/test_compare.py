"""`adagp compare` as a user calls it: real runs on the digits, continued, and what is rejected before any run."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from adagp.program.run import RunFolder, TrainConfig
from adagp.program.train.session import Session, Silent

Program = Callable[..., Any]
OPTIONS: tuple[str, ...] = (
    "--methods",
    "bp,skip",
    "--seeds",
    "1",
    "--batches",
    "16",
    "--batch-size",
    "200",
    "--ratio",
    "1:1",
)
OPTIONS += ("--warmup-batches", "4", "--lr", "0.02", "--set", "width=0.25", "--large-batch", "400", "--points", "2")
OPTIONS += ("--rounds", "3", "--jobs", "2", "--out", "compared")


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.medium
@pytest.mark.usefixtures("forked_jobs")
def test_a_comparison_from_beginning_to_end_and_again(program: Program) -> None:
    ended = program("compare", *OPTIONS, "--target", "0.05", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["failed"] == []
    assert document == json.loads(Path("compared/report.json").read_text())
    check_document(document)
    check_files(document)
    check_a_run_is_an_ordinary_run(document)

    # Again with the same options: nothing is repeated. A run that was cut off is continued; another target is allowed.
    kept = {path: path.stat().st_mtime_ns for path in Path("compared").glob("*/*/summary.json")}
    Path("compared/runs/skip-16-seed0/summary.json").unlink()
    again = program("compare", *OPTIONS, "--json")
    assert again.code == 0, again.err
    repeated = json.loads(again.out)
    assert (
        repeated["regimes"]["batches"]["methods"]["skip"]["accuracy_mean"]
        == (document["regimes"]["batches"]["methods"]["skip"]["accuracy_mean"])
    )
    assert [path.parent.name for path, time in kept.items() if path.stat().st_mtime_ns != time] == ["skip-16-seed0"]

    # Other options are rejected, and a run that fails is told of.
    rejected = program("compare", *OPTIONS, "--lr", "0.5")
    assert (rejected.code, rejected.err) == (
        2,
        "error: 'compared' holds a comparison with other options (options differ). "
        "Repeat it with the same ones to continue, or give another --out.\n",
    )
    run = Path("compared/runs/bp-16-seed0")
    (run / "summary.json").unlink()
    (run / "checkpoint.pt").write_bytes(b"broken")
    failed = program("compare", *OPTIONS)
    assert failed.code == 1
    assert (
        "bp seed 0, 16 batches failed: cannot read the checkpoint 'compared/runs/bp-16-seed0/checkpoint.pt'"
        in failed.err
    )
    assert " Its output is in compared/logs/bp-16-seed0.log." in failed.err
    assert "n = 1." in failed.out
    assert "## Failed" in Path("compared/comparison.md").read_text("utf-8")


def check_document(document: dict[str, Any]) -> None:
    assert document["methods"] == ["bp", "skip"]
    assert list(document["regimes"]) == ["batches", "seconds"]
    for content in document["regimes"].values():
        for name, record in content["methods"].items():
            wanted = "accuracy_mean accuracy_low accuracy_high seconds_mean peak_memory cosine_true cosine_large_batch"
            assert set(wanted.split()) <= record.keys()
            assert record["runs"] == 1
            assert (record["accuracy_low"], record["accuracy_high"]) == (None, None)
            assert record["peak_memory"] > 2**26
            assert record["target_share"] == 1
            assert record["seconds_by_phase"]["gp"] == 0 or name == "skip"
            assert -1 <= record["ceiling_minibatch"] <= 1
    at_batches, at_seconds = (document["regimes"][name]["methods"] for name in ("batches", "seconds"))
    assert at_batches["bp"]["cosine_true"] == pytest.approx(1, abs=1e-6)
    assert at_batches["skip"]["cosine_true"] is None
    assert [at_batches[name]["batches"] for name in ("bp", "skip")] == [16, 16]
    assert at_batches["skip"]["gp_batches"] == 7
    assert at_batches["bp"] == at_seconds["bp"] | {"gap_closed": at_batches["bp"]["gap_closed"]} | {
        "gap_clear": at_batches["bp"]["gap_clear"]
    }
    calibration = document["calibration"]
    assert at_seconds["skip"]["batches"] == calibration["methods"]["skip"]["batches"]
    assert at_seconds["skip"]["calibrated_seconds"] <= document["budget_seconds"]
    assert at_seconds["bp"]["calibrated_seconds"] == document["budget_seconds"]


def check_files(document: dict[str, Any]) -> None:
    runs, methods, sites = (table(f"compared/{name}.csv") for name in ("runs", "methods", "sites"))
    assert [(row["regime"], row["name"], row["seed"]) for row in runs] == [
        (regime, name, seed) for regime in ("batches", "seconds") for seed in "0" for name in ("bp", "skip")
    ]
    assert [(row["regime"], row["name"]) for row in methods] == [
        (regime, name) for regime in ("batches", "seconds") for name in ("bp", "skip")
    ]
    for row in methods:
        record = document["regimes"][row["regime"]]["methods"][row["name"]]
        assert float(row["accuracy_mean"]) == record["accuracy_mean"]
    assert [(row["name"], row["site"]) for row in sites] == [
        (name, site) for name in ("bp", "skip") for site in ("conv1", "conv2", "conv3", "fc")
    ]
    text = Path("compared/comparison.md").read_text("utf-8")
    assert "## digits_cnn on digits, equal batches: 16 each" in text
    assert "n = 1. ± is the 95% interval (Student's t) over seeds." in text
    assert ElementTree.parse("compared/pareto.svg").getroot().tag.endswith("svg")
    assert Path("compared/pareto.png").read_bytes().startswith(b"\x89PNG")


def check_a_run_is_an_ordinary_run(document: dict[str, Any]) -> None:
    folder = RunFolder.open(Path("compared/runs/skip-16-seed0"))
    wanted = {"method": "skip", "batches": 16, "warmup_batches": 4, "ratio": "1:1", "width": 0.25, "seed": 0}
    wanted |= {"batch_size": 200, "lr": 0.02, "lr_scheduler": "cosine", "metrics_every": 0}
    session = Session(TrainConfig.from_dict(wanted, "test"), threads=1)
    summary = session.run(session.start(Path("alone")), Silent())
    assert summary is not None
    assert folder.read_json("summary.json")["command"] == summary["command"]
    ours, theirs = torch.load(folder.weights, weights_only=True), session.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    records = [one for one in document["runs"] if one["run"] == str(folder.path)]
    assert [one["accuracy"] for one in records][:1] == [summary["test_accuracy"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "skip"], "--methods must name bp, which the others are compared with."),
        (
            ["--methods", "bp,bp"],
            "--methods names 'bp' twice; rename one of them, for example other:bp.",
        ),
        (["--seeds", "0"], "--seeds is 0; it must be 1 or more."),
        (["--target", "1.5"], "--target is 1.5; it must be above 0 and at most 1."),
        (["--target", "0"], "--target is 0.0; it must be above 0 and at most 1."),
        (["--jobs", "0"], "--jobs is 0; it must be 1 or more."),
        (["--batches", "0"], "--batches is 0; it must be 1 or more."),
        (
            ["--batches", "9", "--epochs", "9"],
            "--epochs and --batches both set the length of the runs; give one of them.",
        ),
        (["--set", "seed=1"], "option 'seed' cannot be set here: the comparison chooses it for each run."),
        (
            ["--batches", "50", "--warmup-batches", "50"],
            "method 'feedback@1:1': warm-up of 50 batches does not fit a run of 50: nothing would be predicted. "
            "Give --warmup-batches 0 to 49, or more batches.",
        ),
        (
            ["--methods", "bp,zero", "--ratio", "sites=fc9"],
            "method 'zero': the schedule's pattern 'fc9' matches no site of the model. Its sites are: conv1, conv2, conv3, fc.",
        ),
        (["--regimes", ""], "--regimes is empty; choose from: batches, seconds, accelerator, pipeline, cluster."),
        (
            ["--methods", "bp,feedback@adaptive", "--regimes", "seconds"],
            "method 'feedback@adaptive': the number of GP batches of an adaptive schedule is known only after a run; add the "
            "regime batches, whose runs are counted.",
        ),
        (
            ["--regimes", "pipeline", "--pipeline", "best,devices=9,micro-batches=4"],
            "--pipeline 'best,devices=9,micro-batches=4': 9 stages on 9 devices are more than the 4 layers of 'digits_cnn'; "
            "give fewer devices, or costs=balanced.",
        ),
        (
            ["--methods", "bp,zero", "--regimes", "pipeline"],
            "method 'zero': its schedule mixes predicted and true gradients in one batch, for which there is no pipeline "
            "cost model; choose a schedule such as 1:1.",
        ),
        (["--tune-batches", "9"], "--tune-batches needs --tune."),
        (
            ["--methods", "bp,skip@1:1", "--warmup-batches", "9", "--tune", "lr=0.1,0.2", "--tune-batches", "9"],
            "method 'skip@1:1': warm-up of 9 batches does not fit a run of 9: nothing would be predicted. Give "
            "--warmup-batches 0 to 8, or more batches.",
        ),
        (["--curve", "0.5,x"], "cannot read 'x' in --curve; write numbers, for example 0.5,0.75,1.25."),
        (["--curve", "0"], "--curve has 0; each number must be above 0 and at most 100."),
        (["--curve", "0.5,0.5"], "--curve has 0.5 twice."),
    ],
)
def test_bad_input_is_rejected_before_any_run(program: Program, arguments: list[str], message: str) -> None:
    ended = program("compare", *arguments, "--out", "rejected")
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {message}\n")
    assert not Path("rejected").exists()


@pytest.mark.parametrize(
    ("arguments", "beginning"),
    [
        (["--methods", "bp,skp"], "unknown method 'skp'. Did you mean 'skip'? Choose from: "),
        (["--set", "learning_rate=1"], "--set: unknown option 'learning_rate'. "),
        (["--model", "vgg99"], "unknown model 'vgg99'. "),
        (["--dataset", "cifar10", "--data-dir", "nowhere"], "data set 'cifar10' is not in nowhere. "),
    ],
)
def test_unknown_names_are_rejected_before_any_run(program: Program, arguments: list[str], beginning: str) -> None:
    ended = program("compare", *arguments, "--out", "rejected")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {beginning}")
    assert not Path("rejected").exists()


def test_options_from_a_file(program: Program) -> None:
    Path("run.toml").write_text("batch-size = 0\n")
    assert program("compare", "--config", "run.toml").err == "error: --batch-size is 0; it must be 1 or more.\n"
    Path("run.toml").write_text('method = "skip"\n')
    assert program("compare", "--config", "run.toml").err == (
        "error: option 'method' cannot be set here: the comparison chooses it for each run.\n"
    )
