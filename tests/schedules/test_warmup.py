"""A warm-up in batches: the schedule behind it is as it was, but for the first batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.plan import WARM_UP, Phase, Step
from adagp.schedules import Adaptive, Ladder, Layer, Layout, Report, Rung, Schedule, WarmUp, parse_schedule

LAYOUT = Layout(tuple(Layer(f"conv{number}", "conv", is_site=True) for number in range(4)))


@pytest.mark.parametrize("text", ["1:1", "ladder", "epochs:1:1", "approx:2", "bp"])
@given(batches=st.integers(1, 30), per_epoch=st.integers(1, 9))
def test_only_the_first_batches_differ(text: str, batches: int, per_epoch: int) -> None:
    inner = parse_schedule(text, 9, 0).resolve(LAYOUT)
    schedule = WarmUp(inner, batches, per_epoch)
    for number in range(40):
        step = Step(*divmod(number, per_epoch))
        assert schedule.plan(step) == (WARM_UP if number < batches else inner.plan(step))
        assert schedule.phase(step) == (Phase.WARMUP if number < batches else inner.phase(step))
    assert schedule.count(9, per_epoch)[Phase.WARMUP] == min(batches, 9 * per_epoch)


@pytest.mark.parametrize("text", ["1:1", "approx:2", "sites=cut 40%; batches=2:1", "adaptive:1-3"])
def test_what_it_says_of_itself_is_what_the_schedule_says(text: str) -> None:
    inner = parse_schedule(text, 9, 0, "feedback")
    schedule = WarmUp(inner, 5, 4)
    for name in ("adapts", "needs_order", "partial", "stops", "log", "text", "sources"):
        assert getattr(schedule, name) == getattr(inner, name)


def test_sites_are_found_by_the_schedule() -> None:
    schedule = WarmUp(parse_schedule("approx:2", 9), 5, 4).resolve(LAYOUT)
    assert [layer.name for layer in LAYOUT.sites if schedule.serves(layer.name)] == ["conv1", "conv3"]
    assert schedule.plan(Step(1, 1)).by_site == {"conv1": "predicted", "conv3": "predicted"}


def test_an_epoch_is_called_warm_up_if_all_of_it_is() -> None:
    schedule: Schedule = WarmUp(Ladder(0, (Rung(1, 1),)), 10, 4)
    assert [schedule.label(epoch) for epoch in range(4)] == ["warm-up", "warm-up", "1:1", "1:1"]
    assert schedule.table(4, 4).splitlines() == [
        "   epochs  ratio           bp       gp  gp share",
        "      1-2  warm-up          8        0     0.000",
        "      3-4  1:1              5        3     0.375",
        "      all                  13        3     0.188",
    ]


def test_an_adaptive_schedule_learns_in_the_warm_up_and_does_not_complain_of_it() -> None:
    schedule = WarmUp(Adaptive(warmup=0), 6, 4).resolve(LAYOUT)
    seen = ""
    for number in range(16):
        step = Step(*divmod(number, 4))
        phase = schedule.phase(step)
        seen += str(phase)[0]
        schedule.observe(Report(step, phase, loss=1.0, cosine=0.5, norm_ratio=1.0))
    assert seen == "wwwwwwgbggbgggbg"
    assert not schedule.log
    other = WarmUp(Adaptive(warmup=0), 6, 4)
    other.load_state_dict(schedule.state_dict())
    assert other.state_dict() == schedule.state_dict()
