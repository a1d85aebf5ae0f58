"""Reports of many chips, and how they scale."""

from dataclasses import replace

import pytest
from tests.pipe.chips.test_training import FEEDBACK, NET, training

from adagp.errors import OptionError
from adagp.hw import Run, scheduled_run
from adagp.pipe.chips import ManyChips
from adagp.pipe.chips.report import chips_report, run_batches, scaling
from adagp.schedules import parse_schedule


def run_of(ratio: str) -> Run:
    return scheduled_run(parse_schedule(ratio, 4, 0, FEEDBACK), 4, 512, 64, NET)


def test_a_run_is_its_batches() -> None:
    chips, run = ManyChips(training("data=4", 4, source=FEEDBACK)), run_of("3:1")
    assert run_batches(run) == (8, 24)
    report = chips_report(chips, run)
    seconds = 8 * chips.learning.seconds + 24 * chips.predicted.seconds
    assert report["run"]["seconds"] == pytest.approx(seconds)
    assert report["run"]["speedup"] == pytest.approx(32 * chips.backprop.seconds / seconds)
    assert report["memory_bytes"]["total"] == chips.memory.total
    alone = chips_report(ManyChips(training("data=4", 4)), run)
    assert not {"bp", "gp", "run"} & alone.keys()
    with pytest.raises(OptionError, match=r"^--chips cannot model a schedule that mixes true and predicted gradients"):
        run_batches(run_of("sites=fc1"))


def test_scaling_has_the_same_batch_or_the_same_share() -> None:
    whole = training("data=8", 8, batch=512, source=FEEDBACK)
    strong, weak = (scaling(whole, kind) for kind in ("strong", "weak"))
    assert [row["chips"] for row in strong] == [row["chips"] for row in weak] == [1, 2, 4, 8]
    assert [row["batch"] for row in strong] == [512] * 4
    assert [row["batch"] for row in weak] == [64, 128, 256, 512]
    assert strong[-1]["gp_seconds"] == weak[-1]["gp_seconds"] == ManyChips(whole).predicted.seconds
    for rows in (strong, weak):
        assert [rows[0][f"{name}_efficiency"] for name in ("backprop", "gp")] == [1, 1]
        assert all(later["backprop_efficiency"] < 1 for later in rows[1:])
    rate = strong[-1]["backprop_seconds"] * 8 / strong[0]["backprop_seconds"]
    assert strong[-1]["backprop_efficiency"] == pytest.approx(1 / rate)
    sharded = scaling(replace(whole, parallel=replace(whole.parallel, zero=1)), "strong")
    assert [row["parallel"].endswith("zero=1") for row in sharded] == [False, True, True, True]
    assert scaling(training("data=4", 4), "strong")[0]["gp_seconds"] is None
