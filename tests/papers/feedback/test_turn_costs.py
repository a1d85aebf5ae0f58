"""Which batches teach feedback, against the source's own counting."""

import pytest

from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.hw.predictions import FeedbackWork
from adagp.papers.feedback.turn_costs import FeedbackTurns, feedback_turns, has_true_gradients
from adagp.papers.feedback.turns import Turns
from adagp.program.run import TrainConfig
from adagp.schedules.base import predicted_plan


@pytest.mark.parametrize(("learn", "correct"), [(1, 1), (3, 2), (4, 4), (1, 5)])
def test_turns_are_those_of_the_source(learn: int, correct: int) -> None:
    options = {"method": "feedback", "learn_every": learn, "correct_every": correct, "features": 8}
    turns = feedback_turns(TrainConfig.from_dict(options, "test"))
    learning, correcting = Turns(learn), Turns(correct)
    for number in range(25):
        fits, corrects = bool(learning.take()), bool(correcting.take())
        assert turns.at(number) == FeedbackWork(features=8, fits=fits, corrects=corrects)


def test_without_a_correction_nothing_is_charged_for_it() -> None:
    turns = feedback_turns(TrainConfig.from_dict({"method": "feedback", "correction": 0.0}, "test"))
    assert turns.at(0) == FeedbackWork(fits=True, corrects=False, subtracts=False)


def test_other_sources_have_no_turns() -> None:
    assert feedback_turns(TrainConfig.from_dict({"method": "adagp"}, "test")) == FeedbackTurns()


def test_batches_with_true_gradients() -> None:
    assert has_true_gradients(BACKPROP_ALL)
    assert has_true_gradients(Plan(Phase.GP, default="feedback", by_site={"head": "backprop"}))
    assert not has_true_gradients(predicted_plan("feedback"))
