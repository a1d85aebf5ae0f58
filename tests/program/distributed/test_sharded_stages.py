"""Pipelines whose stages' weights are sharded over their copies, against one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import slow
from tests.program.distributed.test_pipelines import SHORT, SPEAKER, check
from tests.program.distributed.test_session import LIVELY, assert_equal, rows, weights
from torch import nn

from adagp.errors import ModelError, OptionError
from adagp.program.distributed.pipeline import check_pipeline, joined, without_shards
from adagp.program.distributed.session import ParallelSession
from adagp.program.distributed.stages import ModelStage, _owners
from adagp.program.run import TrainConfig
from adagp.program.run.parallel import parse_parallel

pytestmark = [pytest.mark.medium, pytest.mark.usefixtures("tracer_ready")]

BACKPROP = {"method": "bp", "ratio": None, "warmup_batches": None}


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        slow("fsdp=2,pipeline=2", {}),
        slow("fsdp=2,pipeline:gpipe=2", {"method": "zero"}),
        ("fsdp=2,pipeline:interleaved=2", {"method": "feedback"}),
        slow("fsdp=2,pipeline:zb-v=2", BACKPROP | {"runtime": "torch"}),
        slow("fsdp=2,pipeline=2", SPEAKER | {"method": "feedback", "features": 8, "runtime": "torch", "batches": 6}),
    ],
)
def test_sharded_stages_train_as_one_process(parallel: str, options: dict[str, Any], start: Any, alone: Any) -> None:
    check(start, alone, parallel, **{"lr": 0.02, **options})
    row = rows("run")[-1]
    sent, batches = row["sent_bytes"], row["batches"] | {"bp": row["batches"]["bp"] - row["batches"]["warmup"]}
    numbers = sum(one.numel() for one in weights("run").values())
    assert "gradients" not in sent.get("gp", {})
    for phase in set(sent) & set(batches):  # each stage is gathered once a batch, and its gradients are reduced once
        assert sent[phase]["weights"] == 4 * numbers * batches[phase]
        assert phase == "gp" or sent[phase]["gradients"] == 2 * 4 * numbers * batches[phase]


@pytest.mark.slow
def test_a_stopped_run_of_sharded_stages_resumes_exactly(start: Any) -> None:
    """With batch norm, dropout and Adam; stopped in the middle of an epoch."""
    options = SHORT | LIVELY | {"method": "feedback", "batches": 8, "warmup_batches": 2}
    size, parallel = 4, "fsdp=2,pipeline=2"
    assert start(size, "whole", parallel, **options) == [0] * size
    assert start(size, "run", parallel, **options, stop_after=5) == [0] * size
    assert start(size, "run", parallel, **options, resume=True) == [0] * size
    assert_equal(weights("run"), weights("whole"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"parallel": "fsdp=1,pipeline:zb-h1=1"},
            "--parallel fsdp=1,pipeline:zb-h1=1: pipeline 'zb-h1' computes weight gradients separately from the backward pass, "
            "at the end of which fsdp sums them. Use another pipeline, or data instead of fsdp.",
        ),
        (
            {"parallel": "fsdp=1,pipeline=1", "method": "replay"},
            "method 'replay' cannot run with --parallel fsdp=1,pipeline=1; choose from: bp, adagp, zero, feedback.",
        ),
        (
            {"parallel": "fsdp=1,pipeline=1", "keep": 0.1},
            "--keep ranks the weights of the whole model together; with --parallel fsdp=1,pipeline=1 no process has them all. "
            "Use --parallel data.",
        ),
    ],
)
def test_options_that_cannot_be_sharded_are_rejected(
    nets: Path, one_process: None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as raised:
        ParallelSession(TrainConfig.from_dict({"epochs": 2, "warmup": 1, **options}, "test"))
    assert str(raised.value) == message


def test_copies_of_a_stage_in_one_pipeline_are_rejected() -> None:
    config = TrainConfig.from_dict({"epochs": 2, "warmup": 1}, "test")
    with pytest.raises(OptionError) as raised:
        check_pipeline(config, parse_parallel("fsdp=2,pipeline:chimera=2"), 2)
    assert str(raised.value) == (
        "--parallel fsdp=2,pipeline:chimera=2: in pipeline 'chimera' two processes of one pipeline hold the same stage, each "
        "for its own micro-batches; fsdp sums gradients only between pipelines. Use data instead of fsdp."
    )


def test_a_module_in_several_stages_is_rejected() -> None:
    model, copy = nn.Linear(2, 2), nn.Module()
    copy.weight = model.weight
    with pytest.raises(ModelError) as raised:
        _owners(ModelStage(copy, (), (), ()), model)
    assert str(raised.value) == (
        "the parameters of module 'Linear' are used in several stages: with fsdp they are sharded together. Cut elsewhere "
        "(--split), or use data instead."
    )


def test_shards_are_joined_in_the_order_of_their_rows() -> None:
    first, second = torch.ones(2, 3), torch.zeros(1, 3)
    states = [
        {"one": [{"first row of a part": row, "rows": rows}], "step": torch.tensor(4)}
        for row, rows in ((2, second), (0, first))
    ]
    states[0]["collected"] = {3: first}  # of a stage that the other process does not hold
    found = joined(states)
    assert torch.equal(found.pop("collected")[3], first)
    assert torch.equal(found["one"][0], torch.cat([first, second]))
    assert found["step"] == 4
    assert without_shards(found) == found
