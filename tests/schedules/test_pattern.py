import pytest

from adagp.core.plan import BACKPROP, BACKPROP_ALL, WARM_UP, Phase, Plan, Step
from adagp.errors import OptionError, UsageError
from adagp.schedules import Layer, Layout, Pattern, WarmUp, parse_schedule
from adagp.schedules.pattern import read_batches, read_sites, select


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
    assert plan.frozen == {"conv1.bias", "conv2.bias"}
    assert plan.freezes("conv1.bias")
    assert not plan.freezes("conv3.bias")


def test_a_cut_needs_the_order_of_execution() -> None:
    with pytest.raises(OptionError) as caught:
        Pattern("cut 30%").resolve(convolutions(3))
    assert str(caught.value) == (
        "the schedule's 'cut 30%' needs the order and the cost of the layers: give attach(..., sample=inputs), "
        "a batch of inputs for a trial forward pass."
    )


@pytest.mark.parametrize("sites", ["all", "every conv", "conv*", "1st conv"])
def test_the_first_site_is_rejected_unless_allowed(sites: str) -> None:
    with pytest.raises(OptionError) as caught:
        Pattern(sites).resolve(convolutions(2))
    assert str(caught.value) == (
        f"the schedule's sites '{sites}' take in 'conv1', the model's first site, whose gradient is not replaced by default. "
        "Begin with the 2nd, or add first=allowed."
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
            "the schedule 'batches=all' names no sites: add sites=... (for example sites=every conv).",
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


NAMES = ["conv1", "layer1.conv1", "layer1.conv2", "layer2.conv1", "layer2.conv2", "fc1", "fc2"]
LAYOUT = Layout(tuple(Layer(name, "conv" if "conv" in name else "linear", True, 100) for name in NAMES), measured=True)


def chosen(text: str) -> list[int]:
    """Return the places of the sites that `text` takes."""
    taken = {site.name for selector in read_sites(text) for site in select(selector, LAYOUT)}
    return [place for place, name in enumerate(NAMES) if name in taken]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("every conv", [0, 1, 2, 3, 4]),
        ("every 2nd conv", [1, 3]),
        ("every 2nd conv from 1st", [0, 2, 4]),
        ("every 4th conv from 2nd", [1]),
        ("every 3rd layer from 2nd", [1, 4]),
        ("every linear from 2nd", [6]),
        ("2nd conv", [1]),
        ("7th layer", [6]),
        ("layer1.*", [1, 2]),
        ("1st linear, layer2.conv?", [3, 4, 5]),
        ("cut at layer1.conv2", [0, 1]),
        ("cut 0%", [0]),
        ("cut 20%", [0, 1]),  # of 20 parts: 2 * 2 weight and input gradients, less 1, and 1 input gradient above
        ("cut 65%", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_sites(text: str, places: list[int]) -> None:
    assert chosen(text) == places


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("all", range(12)),
        ("every 4th", [3, 7, 11]),
        ("every 4th from 2nd", [1, 5, 9]),
        ("every 1st", range(12)),
        ("2:1", [0, 1, 3, 4, 6, 7, 9, 10]),
        ("1:3", [0, 4, 8]),
        ("1:0", range(12)),
    ],
)
def test_batches(text: str, taken: list[int]) -> None:
    assert [index for index in range(12) if read_batches(text).takes(index)] == list(taken)


SITE_FORMS = (
    "Allowed forms, separated by commas: all, every [Nth] conv|linear|layer [from Mth], Nth conv|linear|layer, "
    "a name or pattern such as layer3.*, cut N%, cut at NAME."
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"cannot read the sites ''. {SITE_FORMS}"),
        ("every", None),  # a name: it could be a layer's
        ("every 2 conv", f"cannot read the sites 'every 2 conv'. {SITE_FORMS}"),
        ("fc1, cut 20%", "cannot read the sites 'fc1, cut 20%': a cut cannot be combined with other sites."),
        (
            "2nd pool",
            "cannot read the sites '2nd pool': 'pool' is not a kind of layer. Choose from: conv, linear, layer.",
        ),
        ("0th conv", "cannot read the sites '0th conv': layers are counted from 1."),
        ("every 0th conv", "cannot read the sites 'every 0th conv': layers are counted from 1."),
    ],
)
def test_unreadable_sites(text: str, message: str | None) -> None:
    if message is None:
        assert read_sites(text) == (text,)
        return
    with pytest.raises(OptionError) as caught:
        read_sites(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", "some", "every 0th", "every second", "0:1", "every 2nd from 0th"])
def test_unreadable_batches(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_batches(text)
    assert str(caught.value) == f"cannot read the batches '{text}'. Allowed forms: all, every Nth [from Mth], K:M."


LISTED = "Its sites are: conv1, layer1.conv1, layer1.conv2, layer2.conv1, layer2.conv2, fc1, fc2."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer9.*", f"the schedule's pattern 'layer9.*' matches no site of the model. {LISTED}"),
        ("9th conv", "the schedule's sites begin with conv number 9, but the model has 5 such sites."),
        ("cut at pool", f"the schedule's cut is at 'pool', which is not a site of the model. {LISTED}"),
        ("cut at conv1", "the schedule's cut is at 'conv1', the first site: there is none before it."),
    ],
)
def test_patterns_that_match_nothing(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        chosen(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["all", "conv1", "cut 40%", "cut at conv1"])
def test_a_model_without_sites_has_nothing_to_choose_from(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        select(read_sites(text)[0], Layout((), measured=True))
    assert str(caught.value) == "the schedule chooses among the model's sites, but it has none."


def test_a_mixture_reproduces_figure_3_of_gradient_approximation() -> None:
    """Five layers over four batches: each cell has its own method; the first pattern that names a site decides."""
    layout = Layout(tuple(Layer(f"conv{number}", "conv", True) for number in range(1, 6)))
    text = (
        "sites=2nd conv; batches=every 2nd; source=zero + sites=4th conv; source=topk + sites=2nd conv; source=random"
    )
    schedule = parse_schedule(text, 1).resolve(layout)
    assert schedule.sources == {"zero", "topk", "random"}
    assert schedule.text == text.replace("; source=topk", "; batches=all; source=topk").replace(
        "sites=2nd conv; source=random", "sites=2nd conv; batches=all; source=random"
    )
    plans = [schedule.plan(Step(0, batch)) for batch in range(4)]
    assert [plan.source_of("conv2") for plan in plans] == ["random", "zero"] * 2
    assert [plan.source_of("conv4") for plan in plans] == ["topk"] * 4
    assert {plan.source_of("conv1") for plan in plans} == {BACKPROP}
    assert schedule.serves("conv4")
    assert not schedule.serves("conv5")


def test_a_mixture_has_no_cut() -> None:
    with pytest.raises(OptionError) as caught:
        parse_schedule("sites=cut 40% + sites=2nd conv", 1)
    assert str(caught.value) == "a mixture of patterns cannot contain a cut or rest=hold: use these on their own."
