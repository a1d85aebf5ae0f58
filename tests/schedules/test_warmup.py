"""A warm-up in epochs or in batches: the schedule behind it is as it was, but for the first of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import WARM_UP, Phase, Step
from adagp.errors import OptionError
from adagp.schedules import Adaptive, Ladder, Layer, Layout, Report, Rung, Schedule, WarmUp, parse_schedule
from adagp.schedules.ladder import scaled_warmup

LAYOUT = Layout(tuple(Layer(f"conv{number}", "conv", is_site=True) for number in range(4)))


def letters(schedule: Schedule, epochs: int, batches: int) -> list[str]:
    """Return the phases of a run, a word of w, b and g for each epoch."""
    return ["".join(schedule.phase(Step(epoch, batch))[0] for batch in range(batches)) for epoch in range(epochs)]


def test_the_papers_run_counted_by_hand() -> None:
    """90 epochs of 60 batches, so that every ratio divides the epoch."""
    paper = WarmUp(Ladder(), epochs=10)
    by_hand = {"warm-up": 10 * 0, "4:1": 4 * 48, "3:1": 4 * 45, "2:1": 4 * 40, "1:1": 68 * 30}
    rows = paper.rows(epochs=90, batches_per_epoch=60)
    assert {row.label: row.batches.get(Phase.GP, 0) for row in rows} == by_hand
    assert [(row.first + 1, row.last + 1) for row in rows] == [(1, 10), (11, 14), (15, 18), (19, 22), (23, 90)]
    assert paper.count(epochs=90, batches_per_epoch=60) == {Phase.WARMUP: 600, Phase.BP: 2228, Phase.GP: 2572}
    assert round(paper.predicted_share(epochs=90, batches_per_epoch=60), 3) == 0.476


@pytest.mark.parametrize(
    ("text", "warmup", "written"),
    [
        ("3:1", None, ["wwwwww", "gggbgg", "gggbgg", "gggbgg", "gggbgg", "gggbgg"]),
        ("3:1", 0, ["gggbgg"] * 6),
        ("3:1", 5, ["wwwwww"] * 5 + ["gggbgg"]),
        ("ladder", None, ["wwwwww", "ggggbg", "gggbgg", "ggbggb", "gbgbgb", "gbgbgb"]),
        ("ladder", 2, ["wwwwww", "wwwwww", "ggggbg", "gggbgg", "ggbggb", "gbgbgb"]),
        ("paper", 1, ["wwwwww", "ggggbg", "ggggbg", "ggggbg", "ggggbg", "gggbgg"]),
        ("2:1x2,1:2x1,0:1", 2, ["wwwwww", "wwwwww", "ggbggb", "ggbggb", "gbbgbb", "bbbbbb"]),
        ("epochs:2:1", None, ["wwwwww", "gggggg", "gggggg", "bbbbbb", "gggggg", "gggggg"]),
        ("epochs:2:1", 2, ["wwwwww", "wwwwww", "gggggg", "gggggg", "bbbbbb", "gggggg"]),
        ("approx:2", None, ["bgbgbg"] * 6),
        ("approx:2", 2, ["wwwwww", "wwwwww", "bgbgbg", "bgbgbg", "bgbgbg", "bgbgbg"]),
        ("sites=2nd conv; batches=2:1", 1, ["wwwwww", "ggbggb", "ggbggb", "ggbggb", "ggbggb", "ggbggb"]),
        ("bp", None, ["bbbbbb"] * 6),
        ("bp", 2, ["bbbbbb"] * 6),
    ],
)
def test_whole_runs_written_out(text: str, warmup: int | None, written: list[str]) -> None:
    assert letters(parse_schedule(text, 6, warmup), 6, 6) == written


@pytest.mark.parametrize(
    "text", ["1:1", "ladder", "4:1x2,1:0x1,0:1", "epochs:1:2", "approx:2", "sites=cut at conv2; batches=2:1"]
)
@given(warmup=st.integers(0, 9), batches=st.integers(1, 9))
def test_after_a_warm_up_in_epochs_the_schedule_begins(text: str, warmup: int, batches: int) -> None:
    layout = Layout(LAYOUT.layers, measured=True)
    inner, schedule = (parse_schedule(text, 10, length).resolve(layout) for length in (0, warmup))
    for epoch in range(15):
        warm = epoch < warmup
        assert schedule.label(epoch) == ("warm-up" if warm else inner.label(epoch - warmup))
        for batch in range(batches):
            plan = WARM_UP if warm else inner.plan(Step(epoch - warmup, batch))
            assert schedule.plan(Step(epoch, batch)) == plan
            assert schedule.phase(Step(epoch, batch)) == plan.phase


@pytest.mark.parametrize("text", ["1:1", "ladder", "epochs:1:1", "approx:2", "bp"])
@given(batches=st.integers(1, 30), per_epoch=st.integers(1, 9))
def test_a_warm_up_in_batches_counts_from_the_beginning_of_the_run(text: str, batches: int, per_epoch: int) -> None:
    inner = parse_schedule(text, 9, 0).resolve(LAYOUT)
    schedule = WarmUp(inner, batches=batches, batches_per_epoch=per_epoch)
    for number in range(40):
        step = Step(*divmod(number, per_epoch))
        assert schedule.plan(step) == (WARM_UP if number < batches else inner.plan(step))
        assert schedule.phase(step) == (Phase.WARMUP if number < batches else inner.phase(step))
    assert schedule.count(9, per_epoch)[Phase.WARMUP] == min(batches, 9 * per_epoch)


@pytest.mark.parametrize("text", ["1:1", "approx:2", "sites=cut 40%; batches=2:1", "adaptive:1-3"])
def test_what_it_says_of_itself_is_what_the_schedule_says(text: str) -> None:
    inner = parse_schedule(text, 9, 0, "feedback")
    for schedule in (WarmUp(inner, batches=5, batches_per_epoch=4), WarmUp(inner, epochs=2)):
        for name in ("adapts", "needs_order", "partial", "stops", "log", "text", "sources"):
            assert getattr(schedule, name) == getattr(inner, name)


def test_sites_are_found_by_the_schedule() -> None:
    schedule = WarmUp(parse_schedule("approx:2", 9), batches=5, batches_per_epoch=4).resolve(LAYOUT)
    assert [layer.name for layer in LAYOUT.sites if schedule.serves(layer.name)] == ["conv1", "conv3"]
    assert schedule.plan(Step(1, 1)).by_site == {"conv1": "predicted", "conv3": "predicted"}


def test_an_epoch_is_called_warm_up_if_all_of_it_is() -> None:
    schedule = WarmUp(Ladder((Rung(1, 1),)), batches=10, batches_per_epoch=4)
    assert [schedule.label(epoch) for epoch in range(4)] == ["warm-up", "warm-up", "1:1", "1:1"]
    assert schedule.table(4, 4).splitlines() == [
        "   epochs  ratio           bp       gp  gp share",
        "      1-2  warm-up          8        0     0.000",
        "      3-4  1:1              5        3     0.375",
        "      all                  13        3     0.188",
    ]


@pytest.mark.parametrize(
    ("schedule", "seen"),
    [
        (WarmUp(Adaptive(), batches=6, batches_per_epoch=4), "wwwwwwgbggbgggbg"),
        (WarmUp(Adaptive(), epochs=2), "wwwwwwwwgbggbggg"),
    ],
)
def test_an_adaptive_schedule_learns_in_the_warm_up_and_does_not_complain_of_it(schedule: WarmUp, seen: str) -> None:
    running = schedule.resolve(LAYOUT)
    found = ""
    for number in range(16):
        step = Step(*divmod(number, 4))
        found += running.phase(step)[0]
        running.observe(Report(step, running.phase(step), loss=1.0, cosine=0.5, norm_ratio=1.0))
    assert found == seen
    assert not running.log
    schedule.load_state_dict(running.state_dict())
    assert schedule.state_dict() == running.state_dict()


def test_the_state_has_no_trace_of_the_warm_up_so_that_old_checkpoints_load() -> None:
    names = "length left_predicted left_true pauses paused cosine norm_ratio recent_loss usual_loss"
    names += " epoch epoch_predicted epoch_batches log"
    assert list(WarmUp(Adaptive(), epochs=1).state_dict()) == names.split()


def test_its_usual_length_is_a_ninth_of_the_run() -> None:
    assert [scaled_warmup(epochs) for epochs in (1, 9, 20, 90)] == [1, 1, 2, 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "warm-up is -1 epochs; it must be 0 or more."),
        ({"batches": -2, "batches_per_epoch": 4}, "warm-up is -2 batches; it must be 0 or more."),
        (
            {"epochs": 1, "batches": 9, "batches_per_epoch": 4},
            "warm-up is 1 epochs and 9 batches; give one of them.",
        ),
        ({"batches": 9}, "batches_per_epoch is 0; a warm-up in batches needs 1 or more."),
    ],
)
def test_wrong_lengths_are_rejected(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        WarmUp(Ladder(), **options)
    assert str(caught.value) == message
