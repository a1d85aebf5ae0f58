"""The cost of a backward pass that stops, against adding up by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.schedules import Layer, Layout


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
        "the schedule wants to save 70% of a batch's work, but without any backward pass it is 62%; ask for that or less."
    )


def test_what_lies_below_a_site_is_held() -> None:
    layers = (
        Layer("", "other", False, held=("token",)),
        Layer("conv1", "conv", True, 5),
        Layer("bn1", "other", False, held=("bn1.weight", "bn1.bias")),
        Layer("conv2", "conv", True, 5, held=("conv2.bias",)),
        Layer("fc", "linear", True, 5, held=("fc.bias",)),
    )
    one = Layout(layers, measured=True)
    assert [site.name for site in one.sites] == ["conv1", "conv2", "fc"]
    assert one.held_below(1) == {"token", "bn1.weight", "bn1.bias"}
    assert one.held_below(2) == {"token", "bn1.weight", "bn1.bias", "conv2.bias"}
    assert one.held_below(3) == {"token", "bn1.weight", "bn1.bias", "conv2.bias", "fc.bias"}
