"""What a split batch costs: the parts by themselves, the weights updated once."""

from itertools import starmap
from operator import add

import pytest
from tests.hw.small_workload import ACCELERATOR, LAYERS, small_stages

from adagp.core.methods import BatchSplit, batch_variation, default_split
from adagp.core.plan import BACKPROP_ALL, predicted_plan
from adagp.errors import OptionError
from adagp.hw import Run, Workload, simulate, stages
from adagp.hw.product import NOTHING
from adagp.hw.simulate import run_in_sequence
from adagp.hw.stages import duties
from adagp.papers.control.hardware import AUTO_SHARE, control_split
from adagp.papers.feedback.hardware import FeedbackWork
from adagp.pipe.modelled import modelled_costs
from adagp.program.run import TrainConfig

WORK = FeedbackWork(corrects=False, subtracts=False)
PLAN = predicted_plan("control")


def test_the_variants_of_a_run_are_the_predictors_own() -> None:
    config = TrainConfig.from_dict(
        {"method": "control", "true_share": "0.25", "predictor": "feedback:correction=0,learn_every=2"}, "test"
    )
    variation = batch_variation("control", config.method_options)
    assert variation.cycle == 2
    assert variation.at(0) == BatchSplit(0.25, "feedback", WORK)
    assert variation.at(1) == BatchSplit(0.25, "feedback", FeedbackWork(fits=False, corrects=False, subtracts=False))
    assert control_split(config.method_options | {"true_share": "auto"}).share == AUTO_SHARE
    assert default_split("control") == BatchSplit(0.5, "feedback", WORK)


def test_a_split_batch_is_its_parts() -> None:
    """Ten samples by backprop that are learned from, thirty that are predicted; and the ten predicted, without a forward."""
    many, few, rest = (stages(Workload("w", LAYERS), ACCELERATOR, samples) for samples in (40, 10, 30))
    split = duties(many, PLAN, ACCELERATOR, True, "control", BatchSplit(0.25, "feedback", WORK))
    true = duties(few, BACKPROP_ALL, ACCELERATOR, True, "feedback", WORK)
    predicted, again = (
        duties(part, predicted_plan("feedback"), ACCELERATOR, False, variant=WORK) for part in (rest, few)
    )
    for whole, one, other, third in zip(split, true, predicted, again, strict=True):
        assert whole.forward.macs == one.forward.macs + other.forward.macs
        assert whole.backward.macs == one.backward.macs + other.backward.macs + third.backward.macs
        assert (whole.learns, whole.predicts) == (one.learns, other.predicts)
        if one.predictions is not None:
            assert whole.predictions is not None
            assert whole.predictions.training == one.predictions.training
    update = many[1].update
    assert update != NOTHING
    written = sum(duty[1].backward.dram_writes + duty[1].forward.dram_writes for duty in (true, predicted, again))
    own = split[1].backward.dram_writes + split[1].forward.dram_writes
    assert own <= written - 2 * update.dram_writes + update.dram_writes, "the weights are updated once"


def test_selection_by_error_predicts_the_whole_batch_first() -> None:
    many = stages(Workload("w", LAYERS), ACCELERATOR, 40)
    drawn, selected = (
        duties(many, PLAN, ACCELERATOR, True, "control", BatchSplit(0.25, "feedback", WORK, selects))
        for selects in (False, True)
    )
    forward = [sum(duty.forward.macs for duty in own) for own in (drawn, selected)]
    assert forward[1] == forward[0] * 50 / 40, "the ten selected samples run again"
    config = TrainConfig.from_dict({"method": "control", "select": "error"}, "test")
    assert batch_variation("control", config.method_options).at(0) == BatchSplit(0.5, "feedback", WORK, True)


@pytest.mark.parametrize(("selects", "rest"), [(False, 30), (True, 40)])
def test_predictions_that_have_no_effect_cost_nothing(selects: bool, rest: int) -> None:
    """Ten samples by backprop, from which nothing is learned; the others, or all that are selected from, run forward."""
    many, few, others = (stages(Workload("w", LAYERS), ACCELERATOR, samples) for samples in (40, 10, rest))
    variant = BatchSplit(0.25, "feedback", WORK, selects, predicts=False)
    split = duties(many, PLAN, ACCELERATOR, True, "control", variant)
    true = duties(few, BACKPROP_ALL, ACCELERATOR, False)
    for whole, one, other in zip(split, true, others, strict=True):
        assert whole.forward == one.forward + other.forward + other.elementwise_forward
        assert whole.backward == one.backward
        assert not whole.learns
        assert not whole.predicts
        assert whole.predictions is None
    plain = duties(many, BACKPROP_ALL, ACCELERATOR, True, "control", variant)
    assert plain == duties(many, BACKPROP_ALL, ACCELERATOR, False)


def test_a_coefficient_of_0_needs_no_predictions_but_to_choose_the_share() -> None:
    options = TrainConfig.from_dict({"method": "control", "coefficient": 0, "select": "error"}, "test").method_options
    assert batch_variation("control", options).at(0) == BatchSplit(0.5, "feedback", WORK, True, predicts=False)
    assert control_split(options | {"true_share": "auto", "select": "random"}).predicts


def test_the_accelerators_own_predictor_predicts_for_both_parts() -> None:
    many = stages(Workload("w", LAYERS), ACCELERATOR, 40)
    stage = duties(many, PLAN, ACCELERATOR, True, "control", BatchSplit(0.5, "predicted"))[1]
    assert stage.predictions is not None
    shared = many[1].predictions
    assert shared is not None
    assert stage.predictions.forward.macs == 3 * shared.forward.macs  # for both parts, and before it learns
    assert stage.predictions.training == shared.training


def test_a_share_of_one_costs_what_backprop_costs_and_smaller_ones_less() -> None:
    large = stages(Workload("w", LAYERS), ACCELERATOR, 512)
    costs = {
        share: sum(
            cost.cycles
            for cost in run_in_sequence(
                duties(large, PLAN, ACCELERATOR, True, "control", BatchSplit(share, "feedback", WORK)), ACCELERATOR
            )
        )
        for share in (0.25, 0.5, 1.0)
    }
    plain = run_in_sequence(duties(large, BACKPROP_ALL, ACCELERATOR, True, "feedback", WORK), ACCELERATOR)
    assert costs[1.0] == sum(cost.cycles for cost in plain)
    assert costs[0.25] < costs[0.5] < costs[1.0]


def test_runs_are_simulated_and_pipelines_rejected() -> None:
    workload = Workload("w", LAYERS)
    plans = ((BACKPROP_ALL, 2), (PLAN, 3))
    simulation = simulate(workload, ACCELERATOR, Run(40, plans, True, "control"), ("max",))
    assert simulation.outcomes["max"].cost.cycles > 0
    message = "^source 'control' splits batches: its cost in a pipeline of devices is not modelled.$"
    with pytest.raises(OptionError, match=message):
        modelled_costs(workload, ACCELERATOR, 2, 4, source="control")


def test_resizing_changes_nothing_where_the_size_is_the_same() -> None:
    chain = small_stages()
    whole = duties(chain, PLAN, ACCELERATOR, True, "control", BatchSplit(1.0, "feedback", WORK))
    plain = duties(chain, BACKPROP_ALL, ACCELERATOR, True, "feedback", WORK)
    totals = [list(starmap(add, ((duty.forward, duty.backward) for duty in batch))) for batch in (whole, plain)]
    assert totals[0] == totals[1]
