import pytest
from tests.hw.small_workload import ACCELERATOR, LAYERS, small_stages

from adagp.core.methods import batch_variation
from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.hw import Linear, Stage, Workload, stages
from adagp.hw.stages import duties
from adagp.papers.feedback.hardware import FeedbackWork, feedback_turns
from adagp.papers.feedback.source import EveryN
from adagp.program.run import TrainConfig


@pytest.fixture(scope="module")
def found() -> tuple[Stage, ...]:
    return small_stages()


def test_feedback_needs_no_chain_but_a_projection_and_the_weight_gradient(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.GP, default="feedback", hold_rest=True)
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False, variant=FeedbackWork(subtracts=False))
    # Four samples are fewer than ten features; what all samples have in common is one more, made of ten patterns.
    projection = (4 * (10 + 1) + 10) * LAYERS[1].output_words
    assert batch[1].backward.macs == projection + found[1].weight_gradient.macs
    assert batch[2].backward.cycles == 0


def test_feedback_mixes_large_batches_to_as_many_samples_as_features() -> None:
    many = stages(Workload("w", LAYERS), ACCELERATOR, 40)
    plan = Plan(Phase.GP, default="feedback", hold_rest=True)
    plain = duties(many, plan, ACCELERATOR, False, variant=FeedbackWork(subtracts=False))
    mixing = (10 + 1) * 40 * LAYERS[1].input_words
    common = 10 * LAYERS[1].output_words
    one = many[1].weight_gradient.macs // 40
    assert plain[1].backward.macs == mixing + common + (10 + 1) * one
    # What is subtracted: mixed inputs of recent batches, brought from memory, times the inverse; and one sample more.
    batch = duties(many, plan, ACCELERATOR, False)
    assert batch[1].backward.macs == plain[1].backward.macs + common + 10 * 10 * LAYERS[1].input_words + one
    noted = (10 + 1) * LAYERS[1].input_words * ACCELERATOR.width("sums")
    truth = LAYERS[1].weights * ACCELERATOR.width("gradients")
    assert batch[1].backward.dram_reads - plain[1].backward.dram_reads >= noted + truth

    learning = duties(many, BACKPROP_ALL, ACCELERATOR, True, "feedback")
    assert [duty.learns for duty in learning] == [True, True, False, True]
    assert not any(duty.predicts for duty in learning)
    assert learning[1].predictions is not None
    moments = 40 * ((10 + 1) * LAYERS[1].output_words + 10 * 10)
    assert learning[1].predictions.training.macs == moments + mixing
    fitting = duties(many, BACKPROP_ALL, ACCELERATOR, True, "feedback", FeedbackWork(corrects=False))
    assert fitting[1].predictions is not None
    assert fitting[1].predictions.training.macs == moments


@pytest.mark.parametrize(("learn", "correct"), [(1, 1), (3, 2), (4, 4), (1, 5)])
def test_updates_are_counted_as_the_source_counts_them(learn: int, correct: int) -> None:
    options = {"method": "feedback", "learn_every": learn, "correct_every": correct, "features": 8}
    config = TrainConfig.from_dict(options, "test")
    variation = batch_variation(config.method, config.method_options)
    learning, correcting = EveryN(learn), EveryN(correct)
    for number in range(25):
        fits, corrects = bool(learning.advance()), bool(correcting.advance())
        assert variation.at(number) == FeedbackWork(features=8, fits=fits, corrects=corrects)


def test_without_a_correction_nothing_is_charged_for_it() -> None:
    config = TrainConfig.from_dict({"method": "feedback", "correction": 0.0}, "test")
    assert feedback_turns(config.method_options).at(0) == FeedbackWork(fits=True, corrects=False, subtracts=False)


def test_class_features_are_charged_as_twice_the_features() -> None:
    config = TrainConfig.from_dict({"method": "feedback", "class_features": True}, "test")
    variant = feedback_turns(config.method_options).predicted
    plan = Plan(Phase.GP, default="feedback", hold_rest=True)
    wide = Linear("head", 1, 64, 20)
    networks = (
        stages(Workload("w", LAYERS), ACCELERATOR, 40),
        stages(Workload("w", (*LAYERS[:-1], wide)), ACCELERATOR, 40),
    )
    ten_and_softmax, twenty = (
        duties(network, plan, ACCELERATOR, False, variant=work)[1]
        for network, work in zip(networks, (variant, FeedbackWork()), strict=True)
    )
    assert ten_and_softmax.backward == twenty.backward


def test_a_batch_without_an_update_costs_nothing_to_learn_from() -> None:
    idle = FeedbackWork(fits=False, corrects=False)
    batch = duties(stages(Workload("w", LAYERS), ACCELERATOR, 4), BACKPROP_ALL, ACCELERATOR, True, "feedback", idle)
    assert not any(duty.learns or duty.predictions for duty in batch)
