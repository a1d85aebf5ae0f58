import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.schedules import (
    SCHEDULE_FORMS,
    Adaptive,
    BackpropOnly,
    EpochAlternation,
    Ladder,
    Rung,
    Schedule,
    WarmUp,
    parse_schedule,
    schedule_forms,
)
from adagp.schedules.text import usual_warmup

RATIOS = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any)
BOUNDED = st.builds(lambda ratio, epochs: Rung(ratio[0], ratio[1], epochs), RATIOS, st.integers(1, 30))
OPEN = st.builds(lambda ratio: Rung(*ratio), RATIOS)
SOURCES = st.sampled_from(["predicted", "remapped", "own"])
LADDERS = st.builds(
    lambda first, last, source: Ladder((*first, last), source), st.lists(BOUNDED, max_size=4), BOUNDED | OPEN, SOURCES
)
ALTERNATIONS = st.builds(EpochAlternation, OPEN, SOURCES)
ADAPTIVE = st.builds(
    lambda low, more, source: Adaptive(low, low + more, source), st.integers(1, 9), st.integers(0, 9), SOURCES
)


@given(LADDERS | ALTERNATIONS | ADAPTIVE, st.integers(0, 20))
def test_a_schedule_is_read_back_from_its_text(schedule: Ladder | EpochAlternation | Adaptive, warmup: int) -> None:
    whole = WarmUp(schedule, epochs=warmup) if warmup else schedule
    assert parse_schedule(whole.text, warmup + 1, warmup, schedule.source) == whole


def test_backprop_only_is_read_back_from_its_text() -> None:
    assert parse_schedule(BackpropOnly().text, 1) == BackpropOnly()


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("ladder", WarmUp(Ladder((Rung(4, 1, 1), Rung(3, 1, 1), Rung(2, 1, 1), Rung(1, 1))), epochs=3)),
        ("paper", WarmUp(Ladder((Rung(4, 1, 4), Rung(3, 1, 4), Rung(2, 1, 4), Rung(1, 1))), epochs=10)),
        ("3:1", WarmUp(Ladder((Rung(3, 1),)), epochs=3)),
        ("4:1x4, 2:1x8 ,1:1", WarmUp(Ladder((Rung(4, 1, 4), Rung(2, 1, 8), Rung(1, 1))), epochs=3)),
        ("epochs:3:1", WarmUp(EpochAlternation(Rung(3, 1), "predicted"), epochs=3)),
        ("bp", BackpropOnly()),
        ("adaptive", WarmUp(Adaptive(1, 8), epochs=3)),
        ("adaptive:2-16", WarmUp(Adaptive(2, 16), epochs=3)),
    ],
)
def test_every_form(text: str, schedule: Schedule) -> None:
    assert parse_schedule(text, epochs=30) == schedule


@pytest.mark.parametrize("text", ["ladder", "paper", "3:1", "epochs:3:1", "adaptive", "approx:1"])
def test_warm_up_and_source_go_into_every_form(text: str) -> None:
    schedule = parse_schedule(text, epochs=30, warmup=7, source="own")
    assert isinstance(schedule, WarmUp)
    assert schedule.epochs == 7
    assert schedule.sources == {"own"}
    assert parse_schedule(text, epochs=30, warmup=0, source="own") == schedule.schedule


def test_the_papers_ladder_prints_as_in_the_paper() -> None:
    assert Ladder().text == "4:1x4,3:1x4,2:1x4,1:1"


@pytest.mark.parametrize("text", ["", "4", "4:1:1", "a:b", "4:1,", "4:1x", "epochs:", "epochs:x", "Ladder", "1.5:1"])
def test_unreadable_ratios_are_answered_with_the_forms(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs=10)
    assert str(caught.value) == (
        f"cannot read the schedule '{text}'. Allowed forms: ladder, paper, K:M, K:MxEPOCHS,...,K:M, epochs:K:M, bp, "
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
        ("4:1,1:1", "only the last rung of a ladder may be open-ended; "),
        ("epochs:3:1x2", "epochs:K:M alternates to the end of the run, "),
    ],
)
def test_what_rungs_reject_is_rejected_in_text(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs=10)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "epochs", "warmup", "kept", "highest"),
    [("3:1", 5, 5, 5, 4), ("ladder", 5, 6, 6, 4), ("paper", 10, None, 10, 9), ("epochs:3:1", 2, 2, 2, 1)],
)
def test_a_warm_up_as_long_as_the_run_is_rejected(
    text: str, epochs: int, warmup: int | None, kept: int, highest: int
) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs, warmup)
    assert str(caught.value) == (
        f"warm-up of {kept} epochs does not fit a run of {epochs}: nothing would be predicted. "
        f"Give a warm-up of 0 to {highest}, or more epochs."
    )


def test_a_run_of_one_epoch_is_told_of_a_warm_up_in_batches() -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule("ladder", 1)
    assert str(caught.value) == (
        "warm-up of 1 epoch does not fit a run of 1: nothing would be predicted. "
        "Give more epochs, a warm-up of 0, or one in batches."
    )


@pytest.mark.parametrize(
    ("text", "epochs", "usual"),
    [("ladder", 1, 1), ("ladder", 90, 10), ("3:1", 2, 1), ("paper", 1, None), ("bp", 1, None), ("approx:1", 1, None),
     ("adaptive", 18, 2)],
)  # fmt: skip
def test_warm_ups_that_are_a_share_of_the_run(text: str, epochs: int, usual: int | None) -> None:
    """Of others the schedule itself says how long they are."""
    assert usual_warmup(text, epochs) == usual


OWN = """
from dataclasses import dataclass
from adagp import Phase, Plan, Schedule, Step
from adagp.schedules import SCHEDULE_FORMS, TextForm

@dataclass(frozen=True)
class Every(Schedule):
    number: int
    source: str

    def plan(self, step: Step) -> Plan:
        taken = (step.batch + 1) % self.number == 0
        return Plan(Phase.GP, default=self.source, hold_rest=True) if taken else Plan(Phase.BP)

    def label(self, epoch: int) -> str:
        return self.text

    @property
    def text(self) -> str:
        return f"every:{self.number}"

    @property
    def sources(self) -> frozenset[str]:
        return frozenset({self.source})

def read(text: str, epochs: int, source: str) -> Schedule:
    return Every(int(text[len("every:"):]), source)

SCHEDULE_FORMS.add("every=N", TextForm(r"every=\\d+", read))
SCHEDULE_FORMS.add("every:N", TextForm(r"every:\\d+", read, warmup=lambda epochs: epochs // 2))
"""


@pytest.fixture
def own_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's file with a schedule and two forms of it, imported."""
    monkeypatch.setattr(SCHEDULE_FORMS, "_things", {name: SCHEDULE_FORMS[name] for name in SCHEDULE_FORMS})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_schedule.py").write_text(OWN)
    import_module("own_schedule")
    yield
    del sys.modules["own_schedule"]


@pytest.mark.usefixtures("own_forms")
def test_a_form_of_ones_own_is_read_and_listed() -> None:
    schedule = parse_schedule("every:3", epochs=5, source="zero")
    assert "".join(schedule.phase(Step(2, batch))[0] for batch in range(7)) == "bbgbbgb"
    assert [schedule.label(epoch) for epoch in range(4)] == ["warm-up", "warm-up", "every:3", "every:3"]
    assert parse_schedule(schedule.text, epochs=5, source="zero") == schedule
    assert schedule_forms().endswith(", sites=...; batches=..., every=N, every:N")
    with pytest.raises(
        OptionError, match=r"^cannot read the schedule 'every:x'\. Allowed forms: ladder, .*, every:N\.$"
    ):
        parse_schedule("every:x", epochs=5)


@pytest.mark.usefixtures("own_forms")
def test_the_form_that_was_registered_last_is_asked_first() -> None:
    assert parse_schedule("every=3", epochs=1, warmup=0).text == "every:3"
    with pytest.raises(OptionError, match=r"^cannot read 'every=x' in the schedule 'every=x'\. Its clauses"):
        parse_schedule("every=x", epochs=1)
