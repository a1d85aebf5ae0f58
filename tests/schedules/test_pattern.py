import pytest

from adagp.core.plan import BACKPROP_ALL, WARM_UP, Phase, Plan, Step
from adagp.errors import OptionError, UsageError
from adagp.schedules import Layer, Layout, Pattern, WarmUp, parse_schedule


def convolutions(count: int, measured: bool = False) -> Layout:
    layers = [Layer(f"conv{place}", "conv", True, 10, (f"conv{place}.bias",)) for place in range(1, count + 1)]
    return Layout((*layers, Layer("fc", "linear", True, 10, ("fc.bias",))), measured)


def cells(text: str, count: int, batches: int) -> list[tuple[int, int]]:
    """Return (convolution, batch), counted from 1, wherever the schedule replaces the gradient."""
    schedule = parse_schedule(text, epochs=3, source="zero").resolve(convolutions(count))
    return [
        (place, batch + 1)
        for batch in range(batches)
        for place in range(1, count + 1)
        if schedule.plan(Step(1, batch)).source_of(f"conv{place}") == "zero"
    ]


def test_the_published_schedules_cell_by_cell() -> None:
    """Wang and Nelaturu, section on approximation schedules; the first convolution is never among them."""
    assert cells("approx:1", 9, 2) == [(2, 1), (6, 1), (2, 2), (6, 2)]
    assert cells("approx:2", 5, 4) == [(2, 2), (4, 2), (2, 4), (4, 4)]
    assert cells("approx:3", 3, 8) == [(2, 4), (3, 4), (2, 8), (3, 8)]
    assert cells("approx:2-layer", 2, 4) == [(2, 2), (2, 4)]


@pytest.mark.parametrize("text", ["approx:1", "approx:2", "approx:3"])
def test_about_a_quarter_of_the_cells_is_approximated(text: str) -> None:
    assert len(cells(text, 21, 40)) / (21 * 40) == pytest.approx(0.25, abs=0.015)


def test_everything_else_is_trained_by_backprop() -> None:
    schedule = WarmUp(Pattern("every 2nd conv", "every 2nd", "topk"), epochs=1).resolve(convolutions(3))
    assert schedule.plan(Step(0, 1)) == WARM_UP
    assert schedule.plan(Step(1, 0)) == BACKPROP_ALL
    assert schedule.plan(Step(1, 1)) == Plan(Phase.GP, by_site={"conv2": "topk"})
    assert schedule.sources == {"topk"}
    assert schedule.partial
    assert not schedule.stops
    assert [schedule.label(epoch) for epoch in (0, 1)] == ["warm-up", "approx:2"]


def test_a_cut_holds_what_lies_below_it() -> None:
    schedule = Pattern("cut at conv3", source="replay")
    assert schedule.stops
    assert schedule.needs_order
    plan = schedule.resolve(convolutions(3, measured=True)).plan(Step(0, 0))
    assert plan.by_site == {"conv1": "replay", "conv2": "replay"}
    assert plan.held == {"conv1.bias", "conv2.bias"}
    assert plan.holds("conv1.bias")
    assert not plan.holds("conv3.bias")


def test_a_cut_needs_the_order_of_execution() -> None:
    with pytest.raises(OptionError) as caught:
        Pattern("cut 30%").resolve(convolutions(3))
    assert str(caught.value) == (
        "the schedule's 'cut 30%' needs the order and the cost of the layers: give attach(..., sample=inputs), "
        "a batch of inputs for a trial forward pass."
    )


@pytest.mark.parametrize("sites", ["all", "every conv", "conv*", "1st conv"])
def test_the_first_site_is_refused_unless_allowed(sites: str) -> None:
    with pytest.raises(OptionError) as caught:
        Pattern(sites).resolve(convolutions(2))
    assert str(caught.value) == (
        f"the schedule's sites '{sites}' take in 'conv1', the model's first site, whose gradient is never to be replaced. "
        "Begin with the 2nd, or say first=allowed."
    )
    assert Pattern(sites, first="allowed").resolve(convolutions(2)).chosen[0] == "conv1"


@pytest.mark.parametrize(
    "text",
    [
        "approx:1",
        "approx:2-layer",
        "sites=every conv from 2nd; batches=2:1; source=topk",
        "sites=all; batches=all; source=feedback; rest=hold; first=allowed",
        "sites=cut 40%; batches=every 2nd; source=replay",
    ],
)
def test_the_text_is_read_back(text: str) -> None:
    schedule = parse_schedule(text, epochs=5, warmup=2, source="zero")
    assert isinstance(schedule, WarmUp)
    assert isinstance(schedule.schedule, Pattern)
    assert schedule.text == text
    assert schedule.epochs == 2
    assert parse_schedule(schedule.text, 5, 2, schedule.schedule.source) == schedule


def test_a_published_pattern_in_clauses_is_the_published_schedule() -> None:
    assert parse_schedule("batches=every 2nd;sites=every 2nd conv", 5).text == "approx:2"


CLAUSES = (
    "Its clauses, each at most once and separated by semicolons, are: sites=..., batches=..., source=..., "
    "rest=train|hold, first=keep|allowed."
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sites=", f"cannot read 'sites=' in the schedule 'sites='. {CLAUSES}"),
        ("sites=fc; layers=3", f"cannot read 'layers=3' in the schedule 'sites=fc; layers=3'. {CLAUSES}"),
        ("sites=fc; sites=fc", f"cannot read 'sites=fc' in the schedule 'sites=fc; sites=fc'. {CLAUSES}"),
        ("sites=fc; all", f"cannot read 'all' in the schedule 'sites=fc; all'. {CLAUSES}"),
        (
            "batches=all",
            "the schedule 'batches=all' does not say which sites: add sites=... (for example sites=every conv).",
        ),
        ("sites=fc; rest=drop", "the schedule says rest=drop; it must be train or hold."),
        ("sites=fc; first=no", "the schedule says first=no; it must be keep or allowed."),
        (
            "sites=fc; batches=never",
            "cannot read the batches 'never'. Allowed forms: all, every Nth [from Mth], K:M.",
        ),
    ],
)
def test_unreadable_clauses(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule(text, epochs=5)
    assert str(caught.value) == message


def test_phases_are_counted_before_there_is_a_model() -> None:
    schedule = parse_schedule("approx:2", epochs=4, warmup=1)
    assert schedule.count(epochs=4, batches_per_epoch=6) == {Phase.WARMUP: 6, Phase.BP: 9, Phase.GP: 9}
    with pytest.raises(UsageError, match=r"^a schedule by patterns must be resolved against a model's layers"):
        schedule.plan(Step(1, 1))
