"""Pipelines in four processes against one process: every schedule, both runtimes, every kind of source."""

from typing import Any

import pytest
from tests.marks import slow
from tests.program.distributed.test_session import assert_close, rows, weights

from adagp.core.methods import METHODS
from adagp.errors import OptionError
from adagp.program.distributed.updates import pipeline_sources
from adagp.sources import ReplaySource

pytestmark = [pytest.mark.medium, pytest.mark.usefixtures("tracer_ready")]

SHORT = {"model": "nets:small_vgg", "batches": 12, "epochs": 1, "warmup": None, "warmup_batches": 4, "check_every": 1}
"""Four batches of backprop, then two of GP to one of BP; copies are compared after every batch."""
TOLERANCE = 1e-5

PROGRAMS = [slow("gpipe"), slow("dapple"), slow("chimera"), slow("interleaved"), slow("zb-h1"), "zb-v"]
TORCH = [slow("gpipe", "adagp"), ("dapple", "feedback"), slow("interleaved", "feedback"), slow("zb-v", "adagp")]


def check(start: Any, alone: Any, parallel: str, tolerance: float = TOLERANCE, **options: Any) -> None:
    """Run four processes and one, and compare the weights."""
    assert start(4, "run", parallel, **SHORT | options) == [0] * 4
    theirs = {name: value for name, value in (SHORT | options).items() if name not in ("runtime", "split")}
    assert_close(weights("run"), alone(**theirs), tolerance)
    assert rows("run")[-1]["batches"] == rows("alone")[-1]["batches"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_feedback_in_every_pipeline(name: str, start: Any, alone: Any) -> None:
    check(start, alone, f"pipeline:{name}", method="feedback", lr=0.02)


@pytest.mark.parametrize("name", ["interleaved", slow("zb-h1"), slow("zb-v")])
def test_the_predictor_in_pipelines_of_several_stages(name: str, start: Any, alone: Any) -> None:
    check(start, alone, f"pipeline:{name}")


@pytest.mark.slow
def test_a_source_of_a_user(start: Any, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_things", {name: METHODS[name] for name in METHODS})  # which it enters itself into
    options = SHORT | {"method": "nets:Replayed", "ratio": "1:1", "lr": 0.02}
    expected = alone(**options)
    assert start(2, "run", "pipeline:gpipe", **options, stop_after=7) == [0, 0]
    assert start(2, "run", "pipeline:gpipe", **options, resume=True) == [0, 0]
    assert_close(weights("run"), expected, TOLERANCE)


def test_a_source_that_cannot_train_in_a_pipeline_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        pipeline_sources({"replay": ReplaySource()})
    assert str(caught.value) == "source 'replay' cannot train in a pipeline: it is not an adagp.sources.PipelineSource."


@pytest.mark.parametrize(("name", "method"), TORCH)
def test_schedules_of_torch(name: str, method: str, start: Any, alone: Any) -> None:
    check(start, alone, f"pipeline:{name}", method=method, runtime="torch", lr=0.02)


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        slow("data=2,pipeline=2", {}),
        ("data=2,pipeline=2", {"method": "feedback", "class_features": True}),
        slow("data=2,pipeline:chimera=2", {"method": "feedback"}),
        slow("data=2,pipeline:zb-v=2", {"runtime": "torch", "method": "feedback"}),
    ],
)
def test_two_dimensions(parallel: str, options: dict[str, Any], start: Any, alone: Any) -> None:
    check(start, alone, parallel, **{"lr": 0.02, **options})


@pytest.mark.slow
def test_eight_processes(start: Any, alone: Any) -> None:
    options = SHORT | {"batches": 6, "warmup_batches": 2, "method": "feedback", "lr": 0.02}
    assert start(8, "run", "data=2,pipeline=4", **options) == [0] * 8
    assert_close(weights("run"), alone(**options), TOLERANCE)


PARTIAL = {"method": "zero", "ratio": "approx:2", "warmup_batches": None}


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        slow("pipeline:zb-v", {"method": "bp", "ratio": None, "warmup_batches": None}),
        slow("pipeline:dapple", {"method": "zero"}),
        ("pipeline:zb-v", PARTIAL),
        slow("pipeline:dapple", {**PARTIAL, "runtime": "torch"}),
    ],
)
def test_backprop_and_zero(parallel: str, options: dict[str, Any], start: Any, alone: Any) -> None:
    check(start, alone, parallel, **options)


SPEAKER = {
    "model": "nets:speaker",
    "dataset": "persuasion",
    "sequence_length": 12,
    "batch_size": 16,
    "batches": 9,
    "warmup_batches": 3,
    "optimizer": "sgd",
    "lr_scheduler": "none",
    "lr": 0.05,
    "predictor_lr": 1e-3,
}


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        slow("pipeline:dapple", {}),
        slow("pipeline:chimera", {"method": "feedback", "features": 8}),
        slow("pipeline:zb-v", {"method": "feedback", "features": 8, "runtime": "torch"}),
        slow("pipeline:gpipe", {"split": "layers.0.feed_forward,layers.1.attention,head", "runtime": "torch"}),
    ],
)
def test_a_transformer(parallel: str, options: dict[str, Any], start: Any, alone: Any) -> None:
    """Its gradients are small: the predictor's Adam divides them by their size, and so enlarges what is rounded off."""
    check(start, alone, parallel, TOLERANCE if "method" in options else 2e-4, **SPEAKER | options)


RESNET = {"model": "resnet20", "width": 0.25}
DENSE_NET = {"model": "nets:dense_net", "runtime": "torch", "lr": 1e-3, "batches": 6, "warmup_batches": 2}
"""In more batches, at a larger rate, what is rounded off grows tenfold every three batches."""


@pytest.mark.parametrize(
    ("parallel", "size", "options"),
    [
        slow("pipeline:interleaved", 4, RESNET),
        slow("pipeline:zb-v", 4, RESNET | {"method": "feedback"}),
        slow("pipeline:dapple", 4, RESNET | {"runtime": "torch"}),
        slow("pipeline:dapple", 2, DENSE_NET),
    ],
)
def test_batch_norm_in_several_processes_as_in_one_with_the_same_micro_batches(
    parallel: str, size: int, options: dict[str, Any], start: Any
) -> None:
    """Batch norm sees micro-batches, so the one process has them, too."""
    options = SHORT | {"lr": 0.01} | options
    assert start(size, "run", parallel, **options) == [0] * size
    assert start(1, "one", "pipeline:gpipe", **{**options, "runtime": "programs"}) == [0]
    assert_close(weights("run"), weights("one"), TOLERANCE)
