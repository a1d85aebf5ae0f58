"""The adaptive schedule, fed with reports: what it does, what it says, and that it goes on exactly."""

import json
import random

import pytest

from adagp.core.plan import Phase, Plan, Step
from adagp.errors import OptionError, UsageError
from adagp.schedules import Adaptive, Layout, Report, Schedule, WarmUp


class Run:
    """Feeds an adaptive schedule after `warmup` epochs batch by batch; BP batches have the given agreement and loss."""

    def __init__(self, adaptive: Adaptive, warmup: int = 0, batches_per_epoch: int = 10) -> None:
        self.adaptive = adaptive
        self.schedule = WarmUp(adaptive, epochs=warmup)
        self.batches_per_epoch = batches_per_epoch
        self.done = 0

    def go(
        self,
        batches: int,
        cosine: float | None = 0.5,
        loss: float | None = 1.0,
        norm_ratio: float = 1.0,
        guarded: bool = False,
    ) -> str:
        """Return the phases of the next `batches` batches, a letter each: w, b or g."""
        letters = ""
        for _ in range(batches):
            step = Step(*divmod(self.done, self.batches_per_epoch))
            phase = self.schedule.phase(step)
            assert self.schedule.plan(step).phase is phase
            letters += phase[0]
            measured = phase is not Phase.GP
            self.schedule.observe(
                Report(
                    step,
                    phase,
                    loss=loss,
                    cosine=cosine if measured else None,
                    norm_ratio=norm_ratio if measured else None,
                    guarded=guarded and not measured,
                )
            )
            self.done += 1
        return letters


def test_phases_grow_while_predictions_are_good_up_to_the_longest() -> None:
    run = Run(Adaptive(shortest=1, longest=4), warmup=1)
    assert run.go(10) == "w" * 10
    assert run.go(20) == "gb" + "ggb" + "gggb" + "ggggb" * 2 + "g"
    assert run.schedule.log == []


def test_phases_shrink_when_predictions_are_so_so() -> None:
    run = Run(Adaptive(shortest=2, longest=4, good=0.4, bad=0.0))
    assert run.go(2 + 1 + 3 + 1 + 4 + 1) == "ggbgggbggggb"
    assert (
        run.go(4 + 1 + 3 + 1 + 2 + 1 + 2 + 1, cosine=0.1) == "ggggb" + "ggggb" + "gggb" + "g"
    )  # the mean follows slowly
    assert run.go(2 + 1 + 2 + 1, cosine=0.1) == "gb" + "ggb" + "g"


def test_a_rising_loss_shortens_phases_too() -> None:
    run = Run(Adaptive(shortest=1, longest=8))
    run.go(9)
    before = run.adaptive.memory.length
    run.go(before + 1, loss=1.3)
    assert run.adaptive.memory.length == before - 1
    assert run.schedule.log == []


def test_bad_agreement_means_a_pause_that_gets_longer() -> None:
    run = Run(Adaptive(shortest=1, longest=3), warmup=1)
    run.go(10, cosine=0.0)
    assert run.go(2 + 3 + 1 + 0, cosine=0.0) == "gb" + "bbb" + "b"
    assert run.go(5 + 9 + 1, cosine=0.0) == "b" * 15
    assert run.schedule.log[:2] == [
        "epoch 2, batch 2: accuracy drop: the predictor underfits; cosine 0.000, norm ratio 1.00 with the true gradients. "
        "Backprop for 3 batches.",
        "epoch 2, batch 5: accuracy drop: the predictor underfits; cosine 0.000, norm ratio 1.00 with the true gradients. "
        "Backprop for 6 batches.",
    ]
    for _ in range(40):  # it becomes good: phases come back, and the next pause is a short one again
        run.go(1, cosine=0.9)
    assert run.adaptive.memory.pauses == 0
    assert run.schedule.phase(Step(9, 0)) in (Phase.GP, Phase.BP)
    assert "g" in run.go(4, cosine=0.9)


def test_loud_predictions_mean_a_pause() -> None:
    run = Run(Adaptive())
    assert run.go(3, norm_ratio=7.0) == "gbb"
    assert "norm ratio 7.00" in run.schedule.log[0]


def test_a_broken_loss_is_named_by_what_the_predictor_knew() -> None:
    for cosine, signature in ((0.6, "overfits"), (0.1, "underfits")):
        run = Run(Adaptive(longest=4, bad=0.0), warmup=1)
        run.go(10, cosine=cosine)
        run.go(2, cosine=cosine, loss=3.0)
        assert run.schedule.log == [
            f"epoch 2, batch 2: accuracy drop: the predictor {signature}; the loss rose by 45%. Backprop for 4 batches."
        ]
        assert run.go(4, cosine=cosine) == "bbbb"


def test_a_loss_that_is_not_finite_and_a_rejection_end_a_phase_at_once() -> None:
    run = Run(Adaptive(shortest=4, longest=6))
    assert run.go(1, loss=float("nan")) == "g"
    assert run.go(6) == "b" * 6
    assert run.go(1, guarded=True) == "g"
    assert run.go(12) == "b" * 12
    assert run.schedule.log[:2] == [
        "epoch 1, batch 1: accuracy drop: the predictor overfits; the loss is not finite. Backprop for 6 batches.",
        "epoch 1, batch 8: accuracy drop: the predictor underfits; the guard rejected a prediction. "
        "Backprop for 12 batches.",
    ]
    run = Run(Adaptive())
    assert run.go(1) + run.go(1, loss=float("inf")) + run.go(9) == "gb" + "b" * 8 + "g"


def test_too_few_predicted_batches_are_named() -> None:
    run = Run(Adaptive(shortest=1, longest=8))
    run.go(11, cosine=0.0)
    assert run.schedule.log[-1] == "epoch 1: no speed-up: phases switch too often; 1 of 10 batches were predicted."
    run = Run(Adaptive(), warmup=1)
    run.go(25)
    assert run.schedule.log == []


def test_it_is_deterministic_and_goes_on_exactly_from_its_state() -> None:
    numbers = random.Random(5)
    figures = [(numbers.uniform(-0.1, 0.6), numbers.uniform(0.5, 2.0)) for _ in range(120)]
    whole = Run(Adaptive(longest=5), warmup=1)
    letters = "".join(whole.go(1, cosine=cosine, loss=loss) for cosine, loss in figures)
    assert {"w", "b", "g"} == set(letters)
    for stop in (5, 37, 80):
        first = Run(Adaptive(longest=5), warmup=1)
        begun = "".join(first.go(1, cosine=cosine, loss=loss) for cosine, loss in figures[:stop])
        second = Run(Adaptive(longest=5), warmup=1)
        second.schedule.load_state_dict(json.loads(json.dumps(first.schedule.state_dict())))
        second.done = first.done
        rest = "".join(second.go(1, cosine=cosine, loss=loss) for cosine, loss in figures[stop:])
        assert begun + rest == letters
        assert second.schedule.state_dict() == whole.schedule.state_dict()


def test_a_trainer_gets_a_copy_that_has_observed_nothing() -> None:
    run = Run(Adaptive())
    run.go(9)
    fresh = run.adaptive.resolve(Layout(()))
    assert fresh == run.adaptive
    assert fresh.memory == Adaptive().memory != run.adaptive.memory


def test_plans_and_names() -> None:
    schedule = WarmUp(Adaptive(source="feedback"), epochs=1)
    assert schedule.plan(Step(1, 0)) == Plan(Phase.GP, default="feedback", hold_rest=True)
    assert schedule.sources == {"feedback"}
    assert (schedule.label(0), schedule.label(1)) == ("warm-up", "adaptive")
    for counted in (schedule, schedule.schedule):
        refuses_to_be_counted(counted)


def refuses_to_be_counted(schedule: Schedule) -> None:
    with pytest.raises(UsageError) as caught:
        schedule.count(3, 10)
    assert str(caught.value) == (
        "an adaptive schedule decides during the run; its batches cannot be counted in advance."
    )


def test_wrong_options() -> None:
    with pytest.raises(OptionError) as caught:
        Adaptive(shortest=3, longest=2)
    assert str(caught.value) == (
        "GP phases of 3 to 2 batches are not possible: adaptive:LOW-HIGH needs 1 <= LOW <= HIGH."
    )
    with pytest.raises(OptionError) as caught:
        Adaptive(good=0.1, bad=0.2)
    assert (
        str(caught.value)
        == "bad agreement is below 0.2, good agreement from 0.1 on; the first must not be above the second."
    )
