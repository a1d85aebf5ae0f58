"""`adagp simulate --memory`: table, JSON, picture and plan, and options that do not go together."""

from pathlib import Path

import pytest
from tests.cli.test_simulate import call, report

from adagp.errors import AdagpError

pytestmark = pytest.mark.medium
DIGITS = ("digits_cnn", "--dataset", "digits", "--memory", "--batch-size", "64")


def test_a_batch_by_backprop_and_a_predicted_one(tmp_path: Path) -> None:
    found = report(*DIGITS, "--plot", str(tmp_path / "memory.svg"))
    assert (found["micro_batches"], found["samples"], found["parameters"]) == (1, 64, 19_258)
    assert found["fixed_bytes"] == dict.fromkeys(("weights", "optimizer state", "gradients"), 2 * 19_258)
    assert sum(found["kept_bytes_by_operation"].values()) == found["kept_bytes"]
    backprop, predicted = found["peak_bytes"].values()
    assert predicted < backprop
    assert "off-chip memory of a step, modelled" in (tmp_path / "memory.svg").read_text("utf-8")
    text = call("simulate", *DIGITS)
    assert "kept for the backward pass" in text
    assert "weights                    │  0.039 │" in text  # 38,516 bytes


def test_micro_batches_and_recomputation_take_less() -> None:
    resnet = ("resnet20", "--memory", "--batch-size", "64")
    whole, *less = (report(*resnet, *more) for more in ((), ("--accumulate", "4"), ("--recompute", "block")))
    assert all(one["peak_bytes"]["backprop"] < whole["peak_bytes"]["backprop"] for one in less)
    assert [one["extra_cycles"] > 0 for one in (whole, *less)] == [False, False, True]


def test_a_plan_fits_the_capacity() -> None:
    whole = report(*DIGITS)["peak_bytes"]["backprop"]
    capacity = f"{0.8 * whole / 1e6:.3f}MB"
    planned = report(*DIGITS, "--capacity", capacity)
    assert planned["peak_bytes"]["backprop"] <= 0.8 * whole + 500
    assert {unit["way"] for unit in planned["plan"]} > {"stash"}
    assert "stash: " in call("simulate", *DIGITS, "--capacity", capacity)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--memory", "--per-layer"),
            "--per-layer cannot be combined with --memory, which models memory instead of cycles and energy.",
        ),
        (("--capacity", "1GB"), "--capacity needs --memory."),
        (("--memory", "--offload-bandwidth", "3"), "--offload-bandwidth has no effect without --capacity."),
        (
            ("--memory", "--capacity", "1GB", "--recompute", "block"),
            "--capacity chooses what each block recomputes; leave out --recompute block.",
        ),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(AdagpError) as caught:
        call("simulate", "digits_cnn", "--dataset", "digits", *options)
    assert str(caught.value) == message
