import pytest

from adagp.errors import OptionError
from adagp.schedules import Layer, Layout
from adagp.schedules.select import read_batches, read_sites, select

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
        ("fc1, cut 20%", "cannot read the sites 'fc1, cut 20%': a cut stands alone."),
        ("2nd pool", "cannot read the sites '2nd pool': 'pool' is no kind of layer. Choose from: conv, linear, layer."),
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
        ("cut at pool", f"the schedule's cut is at 'pool', which is no site of the model. {LISTED}"),
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
