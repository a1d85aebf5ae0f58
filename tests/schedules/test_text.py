import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.schedules import Adaptive, BackpropOnly, EpochAlternation, Ladder, Rung, Schedule, parse_schedule

RATIOS = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any)
BOUNDED = st.builds(lambda ratio, epochs: Rung(ratio[0], ratio[1], epochs), RATIOS, st.integers(1, 30))
OPEN = st.builds(lambda ratio: Rung(*ratio), RATIOS)
SOURCES = st.sampled_from(["predicted", "remapped", "own"])
LADDERS = st.builds(
    lambda warmup, first, last, source: Ladder(warmup, (*first, last), source),
    st.integers(0, 20),
    st.lists(BOUNDED, max_size=4),
    BOUNDED | OPEN,
    SOURCES,
)
ALTERNATIONS = st.builds(EpochAlternation, st.integers(0, 20), OPEN, SOURCES)


ADAPTIVE = st.builds(
    lambda warmup, low, more, source: Adaptive(warmup, low, low + more, source),
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(0, 9),
    SOURCES,
)


@given(LADDERS | ALTERNATIONS | ADAPTIVE)
def test_a_schedule_is_read_back_from_its_text(schedule: Ladder | EpochAlternation | Adaptive) -> None:
    epochs = schedule.warmup + 1
    assert parse_schedule(schedule.text, epochs, schedule.warmup, schedule.source) == schedule


def test_backprop_only_is_read_back_from_its_text() -> None:
    assert parse_schedule(BackpropOnly().text, 1) == BackpropOnly()


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("ladder", Ladder(3, (Rung(4, 1, 1), Rung(3, 1, 1), Rung(2, 1, 1), Rung(1, 1)))),
        ("paper", Ladder(10, (Rung(4, 1, 4), Rung(3, 1, 4), Rung(2, 1, 4), Rung(1, 1)))),
        ("3:1", Ladder(3, (Rung(3, 1),))),
        ("4:1x4, 2:1x8 ,1:1", Ladder(3, (Rung(4, 1, 4), Rung(2, 1, 8), Rung(1, 1)))),
        ("epochs:3:1", EpochAlternation(3, Rung(3, 1), "predicted")),
        ("bp", BackpropOnly()),
        ("adaptive", Adaptive(3, 1, 8)),
        ("adaptive:2-16", Adaptive(3, 2, 16)),
    ],
)
def test_every_form(text: str, schedule: Schedule) -> None:
    assert parse_schedule(text, epochs=30) == schedule


@pytest.mark.parametrize("text", ["ladder", "paper", "3:1", "epochs:3:1"])
def test_warm_up_and_source_go_into_every_form(text: str) -> None:
    schedule = parse_schedule(text, epochs=30, warmup=7, source="own")
    assert isinstance(schedule, Ladder | EpochAlternation)
    assert (schedule.warmup, schedule.source) == (7, "own")


def test_the_papers_ladder_prints_as_in_the_paper() -> None:
    assert Ladder().text == "4:1x4,3:1x4,2:1x4,1:1"


@pytest.mark.parametrize("text", ["", "4", "4:1:1", "a:b", "4:1,", "4:1x", "epochs:", "epochs:x", "Ladder", "1.5:1"])
def test_unreadable_ratios_are_answered_with_the_forms(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs=10)
    assert str(caught.value) == (
        f"cannot read the ratio '{text}'. Allowed forms: ladder, paper, K:M, K:MxEPOCHS,...,K:M, epochs:K:M, bp, "
        "approx:1|2|3|2-layer, adaptive[:LOW-HIGH], sites=...; batches=...."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:0", "ratio 0:0 is not allowed: "),
        ("-4:1", "ratio -4:1 is not allowed: "),
        ("epochs:3:-1", "ratio 3:-1 is not allowed: "),
        ("adaptive:5-2", "GP phases of 5 to 2 batches are not possible: "),
        ("4:1x0,1:1", "a rung lasts at least 1 epoch; got 0 for 4:1."),
        ("4:1,1:1", "only the last rung of a ladder may go on to the end; "),
        ("epochs:3:1x2", "epochs alternate to the end of the run: "),
    ],
)
def test_what_rungs_refuse_is_refused_in_text(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs=10)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "epochs", "warmup", "kept", "highest"),
    [("3:1", 5, 5, 5, 4), ("ladder", 5, 6, 6, 4), ("paper", 10, None, 10, 9), ("epochs:3:1", 2, 2, 2, 1)],
)
def test_a_warm_up_as_long_as_the_run_is_refused(
    text: str, epochs: int, warmup: int | None, kept: int, highest: int
) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs, warmup)
    assert str(caught.value) == (
        f"warm-up of {kept} epochs does not fit a run of {epochs}: nothing would be predicted. "
        f"Give --warmup 0 to {highest}, or more epochs."
    )
