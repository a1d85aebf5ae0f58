"""Real runs in several processes against the same run in one."""

import json
import os
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.marks import slow
from tests.program.distributed.conftest import free_port, introduce, plain_values, run_forks

from adagp.errors import OptionError, TaskError
from adagp.pipe import PIPELINES
from adagp.program.distributed.pipeline import PipelineLoop
from adagp.program.distributed.placement import assign_stages
from adagp.program.distributed.processes import World
from adagp.program.distributed.session import ParallelSession
from adagp.program.run import TrainConfig

pytestmark = pytest.mark.medium

Weights = dict[str, torch.Tensor]


def weights(folder: str) -> Weights:
    found: Weights = torch.load(Path(folder) / "model.pt", weights_only=True)
    return found


def rows(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()]


def assert_close(found: Weights, expected: Weights, tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


def assert_equal(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


WAYS = [
    (2, "data"),
    slow(4, "data"),
    slow(4, "pipeline:gpipe"),
    slow(4, "pipeline:dapple"),
    (4, "pipeline:chimera"),
]


@pytest.mark.parametrize(("size", "parallel"), WAYS)
def test_several_processes_train_as_one(size: int, parallel: str, start: Any, alone: Any) -> None:
    without_prediction = alone(method="bp", warmup=None, ratio=None)
    expected = alone()
    assert start(size, "run", parallel) == [0] * size
    assert_close(weights("run"), expected)
    moved = max(float((expected[name] - without_prediction[name]).abs().max()) for name in expected)
    assert moved > 1e-2, "predictions matter in this run"
    for ours, theirs in zip(rows("run"), rows("alone"), strict=True):
        assert ours["batches"] == theirs["batches"]
        assert ours["answers"] == theirs["answers"]
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-3)
        for site, figures in theirs["sites"].items():
            assert ours["sites"][site]["cosine_previous"] == pytest.approx(figures["cosine_previous"], abs=1e-3)


@pytest.mark.slow
def test_a_pipeline_of_a_plugin_trains_as_one_process_does(
    start: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breadth first: two processes with two stages each, which do not lie side by side."""
    monkeypatch.setattr(PIPELINES, "_things", dict(PIPELINES._things))
    runpy.run_path(str(Path(__file__).parents[3] / "examples/plugins/breadth_first.py"))
    expected = alone()
    assert start(2, "run", "pipeline:breadth-first") == [0, 0]
    assert_close(weights("run"), expected)


@pytest.mark.slow
def test_an_adaptive_schedule_decides_the_same_in_every_process(start: Any, alone: Any) -> None:
    """By the loss of the whole batch, not by that of the process's own share."""
    expected = alone(ratio="adaptive", epochs=4)
    assert start(2, "run", "data", ratio="adaptive", epochs=4, check_every=1) == [0, 0]
    assert_close(weights("run"), expected)
    assert [row["batches"] for row in rows("run")] == [row["batches"] for row in rows("alone")]
    assert sum(row["batches"]["gp"] for row in rows("run")) > 0
    ours = plain_values(Path("run"))["trainer"]["schedule"]
    theirs = torch.load("alone/checkpoint.pt", weights_only=True)["trainer"]["schedule"]
    assert ours["recent_loss"] == pytest.approx(theirs["recent_loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("method", "more"),
    [slow("zero", {"warmup": None, "ratio": None}), ("skip", {}), slow("replay", {}), slow("noise", {})],
)
def test_methods_without_a_predictor_train_as_in_one_process(method: str, more: Any, start: Any, alone: Any) -> None:
    options = {"method": method, "check_every": 1, "batches": 12, "batch_size": 200, **more}
    expected = alone(**options)
    assert start(2, "run", "data", **options) == [0, 0]
    assert_close(weights("run"), expected)
    assert [row["batches"] for row in rows("run")] == [row["batches"] for row in rows("alone")]


@pytest.mark.parametrize(
    ("parallel", "size", "method"),
    [
        slow("fsdp", 4, "bp"),
        slow("fsdp", 4, "adagp"),
        ("fsdp", 4, "feedback"),
        slow("fsdp", 4, "zero"),
        ("data", 2, "bp"),
        ("data", 2, "adagp"),
        slow("data", 2, "feedback"),
        slow("data", 2, "zero"),
    ],
)
def test_methods_train_as_in_one_process(parallel: str, size: int, method: str, start: Any, alone: Any) -> None:
    more = {"adagp": {}, "feedback": {}}.get(method, {"warmup": None, "ratio": None})
    options = {"method": method, "check_every": 1, "batches": 12, "batch_size": 200, "lr_scheduler": "cosine", **more}
    options |= {"warmup": None, "warmup_batches": 4} if method in ("adagp", "feedback") else {}
    expected = alone(**options)
    assert start(size, "run", parallel, **options) == [0] * size
    assert_close(weights("run"), expected)
    assert [row["batches"] for row in rows("run")] == [row["batches"] for row in rows("alone")]


def test_sparse_training_keeps_the_same_weights_in_every_process(start: Any, alone: Any) -> None:
    options = {"keep": 0.3, "keep_decay": 0.5, "check_every": 1}
    expected = alone(**options)
    assert start(2, "run", "data", **options) == [0, 0]
    assert_close(weights("run"), expected)
    assert all(torch.equal(weights("run")[name] == 0, expected[name] == 0) for name in expected)
    assert [row["kept"] for row in rows("run")] == [row["kept"] for row in rows("alone")]


@pytest.mark.slow
def test_a_duplex_model_trains_in_several_processes_as_in_one(start: Any, alone: Any) -> None:
    duplex = {"model": "duplex", "backbone": "none", "branch": 2, "branch_channels": 4, "lr": 0.01, "check_every": 1}
    expected = alone(**duplex)
    assert start(2, "run", "data", **duplex) == [0, 0]
    found = weights("run")
    assert found.keys() == expected.keys()
    learned = {name for name in expected if "measured" not in name}
    assert_close({name: found[name] for name in learned}, {name: expected[name] for name in learned})


def test_copies_of_a_stage_need_equal_shares() -> None:
    assert assign_stages("chimera", 4, 2) == (4, [(0, 3), (1, 2), (1, 2), (0, 3)])
    assert assign_stages("dapple", 3, 5) == (3, [(0,), (1,), (2,)])
    with pytest.raises(OptionError) as raised:
        assign_stages("chimera", 4, 3)
    assert str(raised.value) == (
        "pipeline 'chimera' cannot be run by 4 processes with 3 micro-batches: processes 0 and 3 hold a stage in common, "
        "but do not share its micro-batches equally."
    )


@pytest.mark.parametrize(("size", "parallel"), [slow(2, "data"), slow(2, "pipeline:gpipe"), (2, "pipeline:chimera")])
def test_a_rate_that_falls_with_each_batch_and_an_epoch_that_is_not_whole(
    size: int, parallel: str, start: Any, alone: Any
) -> None:
    """With a predictor that learns from half of the rows, which are the same ones in any number of processes."""
    options = {"batches": 20, "warmup": None, "warmup_batches": 9, "lr_scheduler": "cosine", "predictor_parts": 2}
    expected = alone(**options)
    assert start(size, "run", parallel, **options) == [0] * size
    assert_close(weights("run"), expected)
    assert [row["batches"] for row in rows("run")] == [row["batches"] for row in rows("alone")]
    assert sum(row["batches"]["bp"] + row["batches"]["gp"] for row in rows("run")) == 20
    assert rows("run")[-1]["lr"] == rows("alone")[-1]["lr"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"parallel": "pipeline:gpipe", "method": "remap", "ratio": None, "epochs": 9},
            "method 'remap' cannot run with --parallel pipeline:gpipe; choose from: bp, adagp, zero, feedback.",
        ),
        (
            {"parallel": "data", "compile": True},
            "--compile is for runs in one process; leave it out with --parallel data.",
        ),
        (
            {"parallel": "pipeline:gpipe", "keep": 0.1},
            "--keep ranks the weights of the whole model together; with --parallel pipeline:gpipe no process has them all. "
            "Use --parallel data.",
        ),
        (
            {"parallel": "pipeline:gpipe", "ratio": "adaptive"},
            "a pipeline needs to know the coming batches; an adaptive schedule decides after each.",
        ),
        (
            {"parallel": "pipeline:dapple", "batch_size": 10},
            "a batch of 10 samples does not split into 4 equal parts (micro-batches).",
        ),
        (
            {"parallel": "pipeline:chimera"},
            "chimera pairs its devices, two for each stage; 1 is odd. Give an even number.",
        ),
    ],
)
def test_options_that_cannot_run_in_parallel_are_rejected(
    nets: Path, one_process: None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as raised:
        ParallelSession(TrainConfig.from_dict({"epochs": 2, "warmup": 1, **options}, "test"))
    assert str(raised.value) == message


def test_batches_of_another_shape_are_rejected(nets: Path, one_process: None) -> None:
    options = {"epochs": 2, "warmup": 1, "batch_size": 96, "parallel": "pipeline:gpipe"}
    session = ParallelSession(TrainConfig.from_dict(options, "test"))
    loop = session.start(nets / "run")
    assert isinstance(loop, PipelineLoop)
    with pytest.raises(TaskError) as raised:
        loop._with_fixed_shape((torch.zeros(96, 1, 8, 9), None))
    assert str(raised.value) == (
        "a batch has inputs of shape (96, 1, 8, 9), the first one had (96, 1, 8, 8): a pipeline needs batches of one shape "
        "(Task.fix_shapes)."
    )


def test_an_error_of_the_first_process_reaches_all(start: Any, capfd: Any) -> None:
    Path("run").mkdir()
    Path("run/notes.txt").touch()
    assert start(2, "run", "data") == [1, 1]
    wanted = "holds files that are not a run (notes.txt, ...); give another --out."
    assert capfd.readouterr().err.count(wanted) == 2


SEVEN = {"batch_size": 192}
"""Seven batches an epoch."""


@pytest.mark.parametrize(
    ("parallel", "sizes"),
    [("data", (2, 4, 1)), slow("fsdp", (4, 2)), slow("pipeline:dapple", (2, 4)), slow("pipeline:chimera", (4, 2))],
)
def test_a_run_resumes_with_another_number_of_processes(
    parallel: str, sizes: tuple[int, ...], start: Any, alone: Any
) -> None:
    """In the middle of an epoch, each time: up to rounding it is the same run."""
    expected = alone(**SEVEN)
    for turn, size in enumerate(sizes):
        stop = {} if turn == len(sizes) - 1 else {"stop_after": 5}
        assert start(size, "run", parallel, resume=turn > 0, **SEVEN, **stop) == [0] * size
    assert_close(weights("run"), expected)
    for ours, theirs in zip(rows("run"), rows("alone"), strict=True):
        assert (ours["batches"], ours["answers"]) == (theirs["batches"], theirs["answers"])
        for name in ("train_loss", "train_accuracy", "test_loss"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-3)


LIVELY = SEVEN | {"model": "nets:normalised", "optimizer": "adam", "lr": 1e-3, "lr_scheduler": "plateau"}


@pytest.mark.parametrize(
    ("size", "parallel"), [(2, "data"), slow(2, "fsdp"), slow(4, "pipeline:dapple"), slow(4, "pipeline:chimera")]
)
def test_a_stopped_run_resumes_exactly(size: int, parallel: str, start: Any) -> None:
    """With batch norm, dropout and Adam; stopped in the middle of an epoch."""
    assert start(size, "whole", parallel, **LIVELY) == [0] * size
    assert start(size, "run", parallel, **LIVELY, stop_after=9) == [0] * size
    assert not Path("run/model.pt").exists()
    assert len(rows("run")) == 1
    assert start(size, "run", parallel, **LIVELY, resume=True) == [0] * size
    assert_equal(weights("run"), weights("whole"))
    for ours, theirs in zip(rows("run"), rows("whole"), strict=True):
        for name in ("train_loss", "test_loss", "batches", "answers", "sites", "lr"):
            assert ours[name] == theirs[name]


def die(rank: int, seen: int) -> None:
    if rank == 1 and seen == 20:
        os.kill(os.getpid(), signal.SIGKILL)


def form_groups(rank: int, port: int) -> None:
    """Meet two others and form a group with them; the second one dies meanwhile."""
    introduce(rank, 3, port)
    world = World.join("cpu")
    with world.forming_groups():
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.new_group()


def test_a_process_killed_while_groups_are_formed_ends_the_others(capfd: Any) -> None:
    port = free_port()
    assert run_forks(form_groups, [(rank, port) for rank in range(3)]) == [2, -signal.SIGKILL, 2]
    assert "error: process 2 has lost another process of the run, which was about to begin.\n" in capfd.readouterr().err


def stumble(rank: int, seen: int) -> None:
    if rank == 1 and seen == 20:
        raise ValueError("a process stumbles")


@pytest.mark.parametrize(("size", "parallel"), [slow(2, "data"), slow(4, "pipeline:chimera")])
def test_a_killed_process_ends_the_run_which_resumes_to_the_same_weights(size: int, parallel: str, start: Any) -> None:
    """With a checkpoint in the making all the time."""
    assert start(size, "whole", parallel) == [0] * size
    ended = start(size, "run", parallel, accident=die, checkpoint_seconds=0.0)
    assert ended[1] == -signal.SIGKILL
    assert [code for rank, code in enumerate(ended) if rank != 1] == [1] * (size - 1)
    assert start(size, "run", parallel, resume=True) == [0] * size
    assert_equal(weights("run"), weights("whole"))


@pytest.mark.parametrize(("size", "parallel"), [(2, "data"), slow(4, "pipeline:gpipe")])
def test_a_process_that_raises_leaves_no_other_behind(size: int, parallel: str, start: Any, capfd: Any) -> None:
    assert start(size, "run", parallel, accident=stumble) == [1] * size
    err = capfd.readouterr().err
    assert "ValueError: a process stumbles" in err
    assert "RunError: process 0 has lost another process of the run: see that one's error." in err


def test_copies_that_differ_stop_the_run(start: Any, capfd: Any) -> None:
    assert start(2, "run", "data", model="nets:counting") == [1, 1]
    wanted = "RunError: the copies of the model and its predictor in the processes 0 and 1 differ after 3 batches."
    assert capfd.readouterr().err.count(wanted) == 2


def test_bytes_that_are_sent(start: Any) -> None:
    assert start(2, "run", "data", check_every=0) == [0, 0]
    warmup, mixed = (row["sent_bytes"] for row in rows("run"))
    parameters = 6 * 9 + 6 + 8 * 54 + 8 + 8 * 72 + 8 + 12 * 128 + 12 + 10 * 12 + 10
    summaries = 16 * (6 + 8 + 8 + 12 + 10) + 5 + 6  # with their samples, and which of the sites were called
    numbers = {"gradients": parameters, "summaries": summaries, "statistics": 3}  # two requests and the loss
    assert warmup["warmup"] == {kind: 2 * 14 * 4 * number for kind, number in numbers.items()}
    batches = rows("run")[1]["batches"]
    del numbers["gradients"]
    assert mixed["gp"] == {kind: 2 * batches["gp"] * 4 * number for kind, number in numbers.items()}
    assert mixed["bp"]["gradients"] == 2 * batches["bp"] * 4 * parameters


@pytest.mark.slow
def test_a_pipeline_measures_its_bubbles_and_transfers(start: Any) -> None:
    assert start(4, "run", "pipeline:dapple") == [0] * 4
    for row in rows("run"):
        assert 0 < row["bubble_share"] < 1
        assert row["rejected_updates"] == 0
    sent = rows("run")[1]["sent_bytes"]
    assert "input gradients" in sent["bp"]
    assert set(sent["gp"]) == {"activations", "requests"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the guard rejected half or more")  # which is what this is about
def test_the_guard_rejects_updates_by_stage(start: Any) -> None:
    assert start(4, "run", "pipeline:gpipe", guard_limit=1e-9) == [0] * 4
    second = rows("run")[1]
    assert second["rejected_updates"] == 4 * second["batches"]["gp"]
