import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, Step
from adagp.errors import OptionError
from adagp.schedules import EpochAlternation, Ladder, Rung, Schedule

RATIOS = st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any)
RUNGS = st.lists(st.tuples(RATIOS, st.integers(1, 4)), min_size=1, max_size=4)


def letters(schedule: Schedule, epoch: int, batches: int) -> str:
    names = {Phase.WARMUP: "w", Phase.BP: "b", Phase.GP: "g"}
    return "".join(names[schedule.plan(Step(epoch, batch)).phase] for batch in range(batches))


def test_every_epoch_begins_anew_with_phase_gp() -> None:
    ladder = Ladder((Rung(4, 1, 1), Rung(2, 3)))
    assert [letters(ladder, epoch, 7) for epoch in range(3)] == ["ggggbgg", "ggbbbgg", "ggbbbgg"]


@given(RUNGS, st.integers(1, 12), st.booleans())
def test_plans_equal_a_ladder_written_out(
    parts: list[tuple[tuple[int, int], int]], batches: int, open_end: bool
) -> None:
    rungs = [Rung(*ratio, epochs) for ratio, epochs in parts]
    written: list[str] = []
    for (predicted, true), epochs in parts:
        written += [("g" * predicted + "b" * true) * batches] * epochs
    written += written[-1:] * 3  # the last rung goes on, whether it says so or not
    if open_end:
        rungs[-1] = Rung(*parts[-1][0])
    ladder = Ladder(tuple(rungs))
    assert [letters(ladder, epoch, batches) for epoch in range(len(written))] == [text[:batches] for text in written]


@given(RATIOS, st.integers(1, 5))
def test_whole_epochs_alternate(ratio: tuple[int, int], batches: int) -> None:
    schedule = EpochAlternation(Rung(*ratio))
    written = ("g" * ratio[0] + "b" * ratio[1]) * 3
    assert [letters(schedule, epoch, batches) for epoch in range(len(written))] == [one * batches for one in written]


def test_plans_name_the_source() -> None:
    ladder = Ladder((Rung(1, 1),), source="own")
    assert ladder.plan(Step(1, 0)) == Plan(Phase.GP, default="own", hold_rest=True)
    assert ladder.plan(Step(1, 1)) is BACKPROP_ALL
    assert ladder.sources == {"own"}
    assert EpochAlternation().sources == {"remapped"}


def test_labels() -> None:
    assert [Ladder((Rung(4, 1, 1), Rung(1, 1))).label(epoch) for epoch in range(3)] == ["4:1", "1:1", "1:1"]
    assert [EpochAlternation(Rung(1, 1)).label(epoch) for epoch in range(3)] == ["all gp", "all bp", "all gp"]


def test_the_ladder_shrinks_with_the_run() -> None:
    assert Ladder.scaled(90) == Ladder()
    assert Ladder.scaled(180) == Ladder((Rung(4, 1, 8), Rung(3, 1, 8), Rung(2, 1, 8), Rung(1, 1)))
    assert Ladder.scaled(20) == Ladder((Rung(4, 1, 1), Rung(3, 1, 1), Rung(2, 1, 1), Rung(1, 1)))
    assert Ladder.scaled(20, source="own") == Ladder(Ladder.scaled(20).rungs, "own")


@pytest.mark.parametrize(("predicted", "true"), [(0, 0), (-1, 1), (1, -1)])
def test_ratios_without_an_alternation_are_rejected(predicted: int, true: int) -> None:
    with pytest.raises(OptionError) as caught:
        Rung(predicted, true)
    assert str(caught.value) == (
        f"ratio {predicted}:{true} is not allowed: K:M needs whole numbers of at least 0 that are not both 0, "
        "for example 4:1 (four GP batches, then one BP batch)."
    )


def test_a_rung_lasts_an_epoch_at_least() -> None:
    with pytest.raises(OptionError) as caught:
        Rung(4, 1, 0)
    assert str(caught.value) == "a rung lasts at least 1 epoch; got 0 for 4:1."


def test_a_ladder_has_rungs_and_only_the_last_is_open() -> None:
    with pytest.raises(OptionError) as caught:
        Ladder(rungs=())
    assert str(caught.value) == "a ladder needs at least one rung, for example 4:1."
    with pytest.raises(OptionError) as caught:
        Ladder(rungs=(Rung(4, 1), Rung(1, 1)))
    assert str(caught.value) == (
        "only the last rung of a ladder may be open-ended; give the others a number of epochs (4:1x4)."
    )


def test_an_alternation_of_epochs_has_no_end() -> None:
    with pytest.raises(OptionError) as caught:
        EpochAlternation(ratio=Rung(3, 1, 2))
    assert str(caught.value) == (
        "epochs:K:M alternates to the end of the run, so its ratio takes no number of epochs; got 3:1x2."
    )
