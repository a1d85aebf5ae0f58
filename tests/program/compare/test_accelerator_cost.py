"""Costs of runs on the modelled accelerator, by hand."""

import pytest

from adagp.core.plan import BACKPROP_ALL, Phase
from adagp.errors import OptionError
from adagp.hw import Array, Linear, Workload
from adagp.program.compare.costs import longest_run
from adagp.program.compare.modelled_cost import AcceleratorCost, AcceleratorPlatform, parse_accelerator
from adagp.program.run import TrainConfig

LAYER = Workload("one layer", (Linear("fc", 1, 64, 10, input_gradient=False),))
FORWARD = 6 * 1 * (128 + 12 + 12 + 15 - 2)
"""64 inputs in folds of 12 rows, 10 outputs in one of 15 columns: load the weights, stream 128 samples, fill and drain."""
WEIGHT_GRADIENT = 6 * 1 * (128 + 12 + 15 - 2)
"""In place: the sums grow where the weights were, so there is nothing to load."""
MIXING = 11 * 5 * (11 + 37)
"""The 128 inputs of 64 numbers mixed to 10 features and a mean: all that a correction takes in a batch by backprop."""
COMMON = 1 * 1 * (1 + 37)
"""The mean's part of ten patterns."""
MIXED = COMMON + MIXING + 6 * 1 * (12 + 25) + COMMON + 1 * 5 * (10 + 37)
"""The inputs mixed; the mixed inputs of recent batches, which are subtracted, times the inverse, 10 by 10; the mean's part of
both; the weight gradient of twelve samples: ten features, and a mean of each."""
MOMENTS = 11 * 1 * (11 + 37) + 11 * 1 * (10 + 37)
"""Ten differences and ones with the 10 output gradients of 128 samples, and the differences with themselves."""


def run(method: str, batches: int, **options: object) -> TrainConfig:
    given = {"method": method, "batches": batches, "batch_size": 128, **options}
    return TrainConfig.from_dict(given, "test", foreign="drop")


def test_the_cost_of_a_batch_by_hand() -> None:
    model = AcceleratorCost(AcceleratorPlatform("efficient"), LAYER, lambda config: 100)
    plain = FORWARD + WEIGHT_GRADIENT
    assert model.batch_cost(BACKPROP_ALL, run("bp", 10), None) == plain
    feedback = run("feedback", 10, ratio="1:1", warmup_batches=4)
    found = {one.phase: (one.batches, one.cost) for one in model.batch_costs(feedback)}
    learning = plain + MOMENTS + MIXING
    assert found == {Phase.WARMUP: (4, learning), Phase.GP: (3, FORWARD + MIXED), Phase.BP: (3, learning)}
    assert model.run_cost(feedback) == 7 * learning + 3 * (FORWARD + MIXED)
    assert model.run_cost(feedback, share=0.5) == 5 * learning + 5 * (FORWARD + MIXED)


def test_batches_in_which_feedback_does_not_learn_or_correct_itself_are_cheaper() -> None:
    """Of nine batches by backprop the first, fourth and seventh teach; every second one corrects."""
    model = AcceleratorCost(AcceleratorPlatform("efficient"), LAYER, lambda config: 100)
    options = {"learn_every": 3, "correct_every": 2}
    feedback = run("feedback", 12, ratio="1:1", warmup_batches=6, **options)
    plain = FORWARD + WEIGHT_GRADIENT
    assert model.run_cost(feedback) == 9 * plain + 3 * MOMENTS + 5 * MIXING + 3 * (FORWARD + MIXED)
    kinds = {(one.phase, one.cost): one.batches for one in model.batch_costs(feedback)}
    assert kinds == {
        (Phase.WARMUP, plain + MOMENTS + MIXING): 1,
        (Phase.WARMUP, plain): 2,
        (Phase.WARMUP, plain + MIXING): 2,
        (Phase.WARMUP, plain + MOMENTS): 1,
        (Phase.BP, plain + MOMENTS + MIXING): 1,
        (Phase.BP, plain): 1,
        (Phase.BP, plain + MIXING): 1,
        (Phase.GP, FORWARD + MIXED): 3,
    }
    few = {
        one.phase: one.cost for one in model.batch_costs(run("feedback", 9, ratio="1:1", warmup_batches=1, features=4))
    }
    assert few[Phase.GP] == FORWARD + 2 * COMMON + 11 * 5 * (5 + 37) + 1 * 5 * (4 + 37) + 6 * 1 * (6 + 25)
    without = run("feedback", 9, ratio="1:1", warmup_batches=1, correction=0.0)
    costs = {one.phase: one.cost for one in model.batch_costs(without)}
    assert costs[Phase.GP] == FORWARD + COMMON + MIXING + 6 * 1 * (11 + 25)
    assert costs[Phase.BP] == plain + MOMENTS


def test_skipped_batches_cost_nothing_and_the_run_gets_longer() -> None:
    model = AcceleratorCost(AcceleratorPlatform(), LAYER, lambda config: 100)
    budget = model.run_cost(run("bp", 20))
    skip = run("skip", 20, ratio="1:1", warmup_batches=0)
    assert longest_run(budget, skip, model.run_cost, 100) == 41  # the batch after the twentieth by backprop is free


def test_text_forms() -> None:
    assert parse_accelerator("max,ws,12x15") == AcceleratorPlatform()
    assert parse_accelerator("8x8, low") == AcceleratorPlatform("low", "ws", Array(8, 8))
    assert str(parse_accelerator("os")) == "max,os,12x15"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mex,ws",
            "--accelerator 'mex,ws': 'mex' is not a design (baseline, low, efficient, max, max-ideal, equal-power, "
            "equal-area), a "
            "dataflow (ws, os, is, rs) or an array; write a design, a dataflow and an array, for example max,ws,12x15.",
        ),
        (
            "ws,os",
            "--accelerator 'ws,os' names two of dataflow; write a design, a dataflow and an array, for example max,ws,12x15.",
        ),
        ("12", "cannot read the array '12'; write ROWSxCOLUMNS, for example 12x15."),
        (
            "baseline",
            "--accelerator 'baseline': the design 'baseline' predicts nothing; choose one of: low, efficient, max, "
            "max-ideal.",
        ),
    ],
)
def test_unreadable_text_is_rejected(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_accelerator(text)
    assert str(caught.value) == message
