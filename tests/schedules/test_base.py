import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import BACKPROP, Phase, Plan, predicted_plan
from adagp.errors import OptionError
from adagp.schedules import BackpropOnly, EpochAlternation, Ladder, Layer, Layout, Row, Rung, WarmUp

SMALL = WarmUp(Ladder(rungs=(Rung(4, 1, 2), Rung(1, 1))), epochs=1)


def test_table_verbatim() -> None:
    assert SMALL.table(epochs=4, batches_per_epoch=7).splitlines() == [
        "   epochs  ratio           bp       gp  gp share",
        "      1-1  warm-up          7        0     0.000",
        "      2-3  4:1              2       12     0.857",
        "      4-4  1:1              3        4     0.571",
        "      all                  12       16     0.571",
    ]


def test_table_of_whole_epochs_verbatim() -> None:
    schedule = WarmUp(EpochAlternation(ratio=Rung(2, 1)), epochs=1)
    assert schedule.table(epochs=5, batches_per_epoch=10).splitlines() == [
        "   epochs  ratio           bp       gp  gp share",
        "      1-1  warm-up         10        0     0.000",
        "      2-3  all gp           0       20     1.000",
        "      4-4  all bp          10        0     0.000",
        "      5-5  all gp           0       10     1.000",
        "      all                  20       30     0.600",
    ]


def test_rows_and_counts() -> None:
    assert SMALL.rows(epochs=4, batches_per_epoch=7) == [
        Row(0, 0, "warm-up", {Phase.WARMUP: 7}),
        Row(1, 2, "4:1", {Phase.GP: 12, Phase.BP: 2}),
        Row(3, 3, "1:1", {Phase.GP: 4, Phase.BP: 3}),
    ]
    assert [row.total for row in SMALL.rows(epochs=4, batches_per_epoch=7)] == [7, 14, 7]
    assert SMALL.count(epochs=4, batches_per_epoch=7) == {Phase.WARMUP: 7, Phase.BP: 5, Phase.GP: 16}
    assert SMALL.predicted_share(epochs=4, batches_per_epoch=7) == 16 / 28


def test_backprop_only_predicts_nothing() -> None:
    schedule = BackpropOnly()
    assert schedule.count(epochs=3, batches_per_epoch=5) == {Phase.BP: 15}
    assert schedule.sources == frozenset()
    assert schedule.text == "bp"


def test_the_plan_of_phase_gp_holds_what_is_not_predicted() -> None:
    assert predicted_plan("predicted") == Plan(Phase.GP, default="predicted", hold_rest=True)
    assert predicted_plan(BACKPROP) == Plan(Phase.BP)


def layout(*macs: int) -> Layout:
    return Layout(tuple(Layer(f"s{place}", "conv", True, cost) for place, cost in enumerate(macs)), measured=True)


def slow_cost(macs: list[int], count: int) -> int:
    """Return the work of a batch in which the first `count` layers have no backward pass."""
    work = 0
    for place, cost in enumerate(macs):
        work += cost  # forward
        if place >= count:
            work += cost  # weight gradient
            if place > count:
                work += cost  # input gradient, which the lowest trained layer does not need
    return work


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_savings_equal_adding_up_layer_by_layer(macs: list[int]) -> None:
    whole = slow_cost(macs, 0)
    expected = [1 - slow_cost(macs, count) / whole for count in range(len(macs) + 1)]
    assert layout(*macs).savings() == pytest.approx(expected)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.floats(0, 0.5))
def test_the_cut_is_the_smallest_that_saves_enough(macs: list[int], saving: float) -> None:
    one = layout(*macs)
    savings = one.savings()
    if saving > savings[-1]:
        return
    count = one.count_for(saving)
    assert count >= 1
    assert savings[count] >= saving
    assert count == 1 or savings[count - 1] < saving


def test_more_than_there_is_cannot_be_saved() -> None:
    with pytest.raises(OptionError) as caught:
        layout(10, 10, 10).count_for(0.7)
    assert str(caught.value) == (
        "the schedule is to save 70% of a batch's work, but a batch without any backward pass saves 62%; "
        "choose that or less."
    )


def test_what_lies_below_a_site_is_held() -> None:
    layers = (
        Layer("", "other", False, other_parameters=("token",)),
        Layer("conv1", "conv", True, 5),
        Layer("bn1", "other", False, other_parameters=("bn1.weight", "bn1.bias")),
        Layer("conv2", "conv", True, 5, other_parameters=("conv2.bias",)),
        Layer("fc", "linear", True, 5, other_parameters=("fc.bias",)),
    )
    one = Layout(layers, measured=True)
    assert [site.name for site in one.sites] == ["conv1", "conv2", "fc"]
    assert one.others_below(1) == {"token", "bn1.weight", "bn1.bias"}
    assert one.others_below(2) == {"token", "bn1.weight", "bn1.bias", "conv2.bias"}
    assert one.others_below(3) == {"token", "bn1.weight", "bn1.bias", "conv2.bias", "fc.bias"}
