"""Whole runs: their folders, and resuming them exactly."""

import json
import os
import signal
import subprocess
import sys
import time
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import slow

from adagp.core.methods import METHODS
from adagp.errors import OptionError, RunError
from adagp.program.run import RunFolder, TrainConfig
from adagp.program.train.checkpoint import load_checkpoint, save_checkpoint
from adagp.program.train.loop import BatchRate, BatchStatus, EpochRate, Loop, WarmUpRate
from adagp.program.train.session import Session, build_rate, check_device, initial_weights, peak_memory, read_config
from adagp.sources.learned import milestones

pytestmark = pytest.mark.medium

USER_MODEL = """
from torch import nn

def make(classes, image):
    return nn.Sequential(
        nn.Conv2d(image[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(4 * image[1] * image[2], classes),
    )
"""


class Silent:
    def on_batch(self, status: BatchStatus) -> None:
        pass

    def on_epoch(self, row: dict[str, Any]) -> None:
        pass


class StopAfter:
    """Answers `stop()` with yes from the given batch on."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_batch(self, status: BatchStatus) -> None:
        self.left -= 1

    def on_epoch(self, row: dict[str, Any]) -> None:
        pass

    def __call__(self) -> bool:
        return self.left <= 0


@pytest.fixture
def user_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of the user's own, with dropout: its result depends on the random state."""
    (tmp_path / "model_with_dropout.py").write_text(USER_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    return "model_with_dropout:make"


def short(model: str, **options: Any) -> TrainConfig:
    return TrainConfig.from_dict(
        {
            "model": model,
            "epochs": 3,
            "batch_size": 200,  # 7 batches per epoch
            "ratio": "2:1",
            "warmup": 1,
            "lr": 0.02,
            "metrics_every": 2,
            **options,
        },
        "test",
    )


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Assert bit-equality of two checkpoints, measured seconds aside."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            if name != "seconds":
                assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{place}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def same_rows(one: RunFolder, other: RunFolder) -> None:
    assert_same(one.rows(), other.rows())


@pytest.mark.parametrize("method", ["adagp", slow("remap"), "bp"])
def test_stopped_anywhere_and_resumed_ends_bit_equal(method: str, tmp_path: Path, user_model: str) -> None:
    options = (
        {} if method == "adagp" else {"ratio": "epochs:1:1"} if method == "remap" else {"ratio": None, "warmup": None}
    )
    config = short(user_model, method=method, lr_scheduler="multistep", **options)
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    assert whole.run(loop, Silent()) is not None
    # The first batch, the middle of a GP phase, the last batch of an epoch, the last batch but one.
    for stop in (1, 8, 14, 20) if method == "adagp" else (9,):
        assert_resumes(config, loop, tmp_path / f"stopped-{stop}", stop)


BY_LAYERS = "sites=2nd layer; batches=2:1"
RATIOS = {"zero": BY_LAYERS, "random": BY_LAYERS, "topk": BY_LAYERS, "average": "sites=cut 40%; batches=2:1"}


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"adagp", "remap", "bp"}))
def test_every_other_method_resumes_exactly(method: str, tmp_path: Path, user_model: str) -> None:
    """Stopped in the middle of a GP phase; sources and schedules start again from the checkpoint."""
    config = short(user_model, method=method, ratio=RATIOS.get(method, "2:1"), epochs=2, metrics_every=3)
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    summary = whole.run(loop, Silent())
    assert summary is not None
    assert summary["batches"]["gp"] == 5
    assert_resumes(config, loop, tmp_path / "stopped", 8)


@pytest.mark.parametrize(("method", "precision"), [("bp", "fast"), ("adagp", "bfp2"), ("feedback", "temporal:2-4@0.5")])
def test_a_run_in_block_floating_point_resumes_exactly_with_its_noise(
    method: str, precision: str, tmp_path: Path, user_model: str
) -> None:
    plan = {"ratio": None, "warmup": None} if method == "bp" else {}
    config = short(user_model, method=method, precision=precision, epochs=2, **plan)
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    assert whole.run(loop, Silent()) is not None
    assert_resumes(config, loop, tmp_path / "stopped", 9)
    figures = loop.rows[-1]["sites"]["0"]
    assert sum(share for name, share in figures.items() if name.startswith("share_")) == pytest.approx(1)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("bp", {"keep_rule": "magnitude", "keep_decay": 0.5, "ratio": None, "warmup": None}),
        ("adagp", {"keep_threshold": "estimate", "momentum": 0.0}),
        ("feedback", {"keep_over": "all", "keep_decay": 1.0}),
    ],
)
def test_sparse_training_resumes_exactly(method: str, options: dict[str, Any], tmp_path: Path, user_model: str) -> None:
    """While initial weights are still there, which no checkpoint holds, and with all methods alike."""
    config = short(user_model, method=method, epochs=2, keep=0.1, **options)
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    assert whole.run(loop, Silent()) is not None
    assert loop.rows[-1]["kept"] == pytest.approx(0.1, abs=0.05 if "keep_threshold" in options else 1e-3)
    assert 0.2 < loop.rows[-1]["sites"]["5"]["input_density"] < 0.5  # after ReLU and dropout
    saved = load_checkpoint(loop.folder.checkpoint)["model"]["5.weight"]
    assert saved["values"].numel() < 0.3 * 10 * 4 * 64
    assert_resumes(config, loop, tmp_path / "stopped", 9)


def test_a_duplex_model_resumes_exactly_with_faults(tmp_path: Path) -> None:
    config = short(
        "duplex",
        backbone="digits_cnn",
        branch=2,
        branch_channels=4,
        stream="fixed",
        read_faults=0.01,
        method="bp",
        ratio=None,
        warmup=None,
        epochs=2,
        lr=1e-3,
    )
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    assert whole.run(loop, Silent()) is not None
    # The last convolutions start at zero: until they have moved, there is nothing that could be recomputed wrongly.
    assert [loop.rows[0]["reconstruction_error"], loop.rows[1]["reconstruction_error"] > 0] == [0, True]
    assert_resumes(config, loop, tmp_path / "stopped", 9)


def test_the_initial_weights_of_a_run_can_be_drawn_again(user_model: str) -> None:
    session = Session(short(user_model))
    drawn = initial_weights(session.config.seed, session.task)
    for name, parameter in session.model.named_parameters():
        assert torch.equal(drawn[name], parameter)
        assert drawn[name].stride() == parameter.stride()


@pytest.mark.parametrize("rate", ["cosine", "linear"])
def test_a_run_of_some_batches_ends_within_an_epoch_and_resumes_exactly(
    rate: str, tmp_path: Path, user_model: str
) -> None:
    config = short(
        user_model, batches=16, warmup=None, warmup_batches=9, method="feedback", ratio="1:1", lr_scheduler=rate
    )
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    summary = whole.run(loop, Silent())
    assert summary is not None
    assert [row["batches"]["warmup"] for row in loop.rows] == [7, 2, 0]
    assert [row["batches"]["bp"] + row["batches"]["gp"] for row in loop.rows] == [7, 7, 2]
    assert [row["label"] for row in loop.rows] == ["warm-up", "1:1", "1:1"]
    assert summary["epochs"] == 3
    assert " --batches 16 --warmup-batches 9 --ratio 1:1 " in summary["command"]
    assert "--epochs" not in summary["command"]
    curve = BatchRate(whole.optimizer, rate, 0.02, 16)
    assert [row["lr"] for row in loop.rows] == [curve.at(6), curve.at(13), curve.at(15)]
    # In the warm-up, in an alternation, the last batch of an epoch, the last batch but one; the last batch is too late.
    for stop in (8, 11, 14, 15):
        assert_resumes(config, loop, tmp_path / f"stopped-{stop}", stop)
    again = Session(config)
    assert again.run(again.resume(tmp_path / "whole"), Silent()) == summary
    saved, _ = read_config(loop.folder, trust=True)
    assert (saved.epochs, saved.batches) == (3, 16)


@pytest.mark.parametrize("scheduler", ["cosine", "plateau"])
def test_a_run_whose_rate_warms_up_resumes_exactly(scheduler: str, tmp_path: Path, user_model: str) -> None:
    config = short(user_model, batches=16, warmup=None, warmup_batches=9, lr_scheduler=scheduler, lr_warmup=0.6)
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    summary = whole.run(loop, Silent())
    assert summary is not None
    assert " --lr-warmup 0.6 " in summary["command"]
    assert loop.rows[0]["lr"] == pytest.approx(
        (0.7 if scheduler == "plateau" else 0.7 * (1 + cos(pi * 6 / 16)) / 2) * 0.02
    )
    for stop in (3, 7, 12):  # in the warm-up, at the end of its first epoch, after it
        assert_resumes(config, loop, tmp_path / f"stopped-{stop}", stop)


def test_a_warm_up_as_long_as_the_run_is_rejected_before_it_begins(user_model: str) -> None:
    message = "warm-up of 16 batches does not fit a run of 16: nothing would be predicted. "
    with pytest.raises(OptionError, match=message + "Give --warmup-batches 0 to 15, or more batches.$"):
        Session(short(user_model, batches=16, warmup=None, warmup_batches=16))
    with pytest.raises(OptionError, match="^warm-up of 3 epochs does not fit a run of 3: nothing would be predicted."):
        Session(short(user_model, batches=16, warmup=3))


def test_an_adaptive_schedule_resumes_exactly(tmp_path: Path, user_model: str) -> None:
    config = short(user_model, method="feedback", ratio="adaptive:1-3", epochs=4, lr=0.2)
    whole = Session(config)
    loop = whole.start(tmp_path / "whole")
    summary = whole.run(loop, Silent())
    assert summary is not None
    assert 0 < summary["batches"]["gp"] < 21
    assert isinstance(summary["schedule_log"], list)
    assert [row["label"] for row in loop.rows] == ["warm-up", "adaptive", "adaptive", "adaptive"]
    for stop in (9, 17):
        assert_resumes(config, loop, tmp_path / f"stopped-{stop}", stop)


def assert_resumes(config: TrainConfig, loop: Loop, path: Path, batches: int) -> None:
    """Assert that a run which is stopped after `batches` and resumed ends as the whole one of `loop` did."""
    first, stopper = Session(config), StopAfter(batches)
    assert first.run(first.start(path), stopper, stopper) is None
    torch.manual_seed(12345)  # what happens in between must not matter
    second = Session(config)
    resumed = second.resume(path)
    assert second.run(resumed, Silent()) is not None
    assert_same(load_checkpoint(resumed.folder.checkpoint), load_checkpoint(loop.folder.checkpoint), f"after {batches}")
    same_rows(resumed.folder, loop.folder)


@pytest.mark.slow
def test_killed_at_any_time_and_resumed_ends_bit_equal(tmp_path: Path) -> None:
    """kill -9 in the middle of a run that writes checkpoints all the time, again and again."""
    command = [sys.executable, "-m", "adagp", "train", "--epochs", "4", "--batch-size", "64", "--ratio", "2:1"]
    command += ["--lr", "0.01", "--checkpoint-seconds", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, env=environment, capture_output=True)
    path = tmp_path / "killed"
    process = subprocess.Popen([*command, "--out", str(path)], env=environment, stderr=subprocess.DEVNULL)
    kills = 0
    for _ in range(3):
        _wait_for_progress(process, path)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        resume = [sys.executable, "-m", "adagp", "train", "--resume", str(path), "--checkpoint-seconds", "0"]
        process = subprocess.Popen(resume, env=environment, stderr=subprocess.DEVNULL)
    assert process.wait() == 0
    assert kills > 0, "the run was over before it could be killed"
    assert_same(load_checkpoint(path / "checkpoint.pt"), load_checkpoint(tmp_path / "whole" / "checkpoint.pt"))
    same_rows(RunFolder.open(path), RunFolder.open(tmp_path / "whole"))


def _wait_for_progress(process: "subprocess.Popen[bytes]", path: Path) -> None:
    """Wait until this process has replaced the checkpoint a few times, or is over."""
    checkpoint = path / "checkpoint.pt"
    seen: set[int] = set()
    while process.poll() is None and len(seen) < 8:
        if checkpoint.exists():
            seen.add(checkpoint.stat().st_mtime_ns)
        time.sleep(0.002)


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "adagp",
        "train",
        "--epochs",
        "500",
        "--checkpoint-seconds",
        "0",
        "--out",
        str(path),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    _wait_for_progress(process, path)  # type: ignore[arg-type]  # text or bytes does not matter here
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert error == f"Stopped. Continue with: adagp train --resume {path}\n"
    state = load_checkpoint(path / "checkpoint.pt")
    config, _ = read_config(RunFolder.open(path), trust=True)
    loop = Session(config).resume(path)
    assert loop.trainer.at.epoch == state["trainer"]["epoch"]


def test_a_run_folder_says_all_about_the_run(tmp_path: Path, user_model: str) -> None:
    config = short(user_model, method="adagp")
    session = Session(config)
    summary = session.run(session.start(tmp_path / "run"), Silent())
    folder = RunFolder.open(tmp_path / "run")
    assert summary == folder.read_json("summary.json")
    assert summary is not None
    assert summary["batches"] == {"bp": 7 + 2 + 2, "gp": 5 + 5, "guarded": 0, "warmup": 7}
    assert 0 < summary["test_accuracy"] <= 1
    assert set(summary["seconds_by_phase"]) == {"data", "warmup", "bp", "gp", "evaluation"}
    assert summary["seconds"] == pytest.approx(sum(summary["seconds_by_phase"].values()))
    assert set(summary["sites"]) == {"0", "5"}
    assert set(summary["sites"]["0"]) == {"cosine", "norm_ratio", "mse", "mape", "cosine_previous"}
    assert read_config(folder, trust=True) == (config, None)
    assert folder.read_json("versions.json")["torch"] == torch.__version__
    written = folder.read_json("config.json")
    folder.write_json("config.json", {name: value for name, value in written.items() if name != "method"})
    assert read_config(folder, trust=True) == (config, None), "old folders do not record the method: it was adagp"
    assert len((folder.path / "sites.csv").read_text().splitlines()) == 1 + 3 * 2
    weights = torch.load(folder.weights, weights_only=True)
    assert list(weights) == list(session.model.state_dict())


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path, user_model: str) -> None:
    folders = []
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        session = Session(short(user_model, seed=seed))
        session.run(session.start(tmp_path / name), Silent())
        folders.append(RunFolder.open(tmp_path / name))
    same_rows(folders[0], folders[1])
    assert folders[0].rows()[-1]["train_loss"] != folders[2].rows()[-1]["train_loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "topk", "ratio": "1:1", "topk": 65},
            "topk keeps 65 positions, but the output (200, 4, 8, 8) of site '0' (Conv2d) has only 64. "
            "Give a smaller k, or exclude the site.",
        ),
        (
            {"method": "topk", "ratio": "sites=5", "topk": 201, "batch_size": 200},
            "topk keeps 201 positions, but the output (200, 10) of site '5' (Linear) has only 200. "
            "Give a smaller k, or exclude the site.",
        ),
        (
            {"method": "zero", "ratio": "sites=head*"},
            "the schedule's pattern 'head*' matches no site of the model. Its sites are: 0, 5.",
        ),
        (
            {"method": "zero", "ratio": "approx:1"},
            "the schedule's sites begin with conv number 2, but the model has 1 such sites.",
        ),
        (
            {"method": "zero", "ratio": "sites=every conv"},
            "the schedule's sites 'every conv' take in '0', the model's first site, whose gradient is not replaced "
            "by default. Begin with the 2nd, or add first=allowed.",
        ),
        (
            {"method": "replay", "ratio": "sites=cut 90%"},
            "the schedule is to save 90% of a batch's work, but a batch without any backward pass saves 60%; "
            "choose that or less.",
        ),
    ],
)
def test_plans_that_cannot_work_are_rejected_before_anything_is_written(
    options: dict[str, Any], message: str, user_model: str
) -> None:
    with pytest.raises(OptionError) as caught:
        Session(short(user_model, **options))
    assert str(caught.value) == message


def test_damaged_and_foreign_checkpoints_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(RunError, match="there is no checkpoint at '.*' yet: nothing to resume"):
        load_checkpoint(path)
    save_checkpoint(path, {"weights": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(RunError, match="cannot read the checkpoint '.*': it is damaged or not a checkpoint"):
        load_checkpoint(path)
    torch.save({"format": 99}, path)
    with pytest.raises(RunError, match="'.*' is not an adagp checkpoint of format 1"):
        load_checkpoint(path)
    torch.save({"format": 1, "evil": Silent()}, path)  # a class of ours: the safe loader must not build it
    with pytest.raises(RunError, match="it is damaged or not a checkpoint"):
        load_checkpoint(path)


def test_schedules_of_the_learning_rate() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    kinds = {
        name: type(build_rate(TrainConfig(lr_scheduler=name), optimizer, 7)).__name__
        for name in ("plateau", "multistep", "cosine", "linear", "none")
    }
    assert kinds == {
        "plateau": "EpochRate",
        "multistep": "EpochRate",
        "cosine": "BatchRate",
        "linear": "BatchRate",
        "none": "Rate",
    }
    for options, batches in (({"epochs": 3}, 21), ({"batches": 9}, 9)):
        config = TrainConfig.from_dict({"lr_scheduler": "cosine", "warmup": 0, **options}, "test")
        rate = build_rate(config, optimizer, 7)
        assert isinstance(rate, BatchRate)
        assert (rate.highest, rate.batches) == (1e-3, batches)
    warm = build_rate(TrainConfig(lr_warmup=0.05, epochs=3, warmup=0), optimizer, 7)
    assert isinstance(warm, WarmUpRate)
    assert warm.batches == 2
    assert isinstance(warm.rate, EpochRate)
    assert milestones(90) == (45, 67)
    assert milestones(1) == (1,)


def test_a_device_that_is_not_there_is_rejected() -> None:
    with pytest.raises(OptionError, match="^device 'cuda:77' cannot be used here: .* Try cpu.$"):
        check_device("cuda:77")
    with pytest.raises(OptionError, match="^device 'toaster' cannot be used here: .* Try cpu.$"):
        check_device("toaster")


def test_metrics_are_json_lines(tmp_path: Path, user_model: str) -> None:
    session = Session(short(user_model))
    session.run(session.start(tmp_path / "run"), Silent())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    assert [json.loads(line)["label"] for line in lines] == ["warm-up", "2:1", "2:1"]


@pytest.mark.medium
def test_the_peak_rises_with_what_is_allocated_and_stays() -> None:
    before = peak_memory(torch.device("cpu"))
    assert before > 2**20
    block = torch.ones(max(before, 2**28) // 4)  # more than was ever free inside the process
    held = peak_memory(torch.device("cpu"))
    assert held >= block.numel() * 4
    assert held > before
    del block
    assert peak_memory(torch.device("cpu")) >= held - 2**24  # the system counts in strides
