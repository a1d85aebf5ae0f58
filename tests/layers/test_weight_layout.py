import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adagp.layers.weight_layout import as_rows, as_weight, exchanged, gradient_norms, in_order, out_of_order, taps_of

SIZES = st.integers(1, 4)


def laid(weight: Tensor, last: bool) -> Tensor:
    """Return the weight in the channels-last format or in the logical order."""
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = forms.get(weight.dim(), torch.contiguous_format) if last else torch.contiguous_format
    return weight.contiguous(memory_format=form)


@given(SIZES, SIZES, st.lists(SIZES, max_size=3), st.booleans())
def test_rows_are_the_memory_and_lead_back_to_the_weight(rows: int, channels: int, taps: list[int], last: bool) -> None:
    weight = laid(torch.randn(rows, channels, *taps), last)
    count = taps_of(weight)
    flat = as_rows(weight, count)
    assert flat.shape == (rows, weight[0].numel())
    assert flat.data_ptr() == weight.data_ptr()
    assert flat.is_contiguous()
    back = as_weight(flat, weight, count)
    assert torch.equal(back, weight)
    assert back.data_ptr() == weight.data_ptr()


@given(SIZES, st.integers(2, 4), st.integers(2, 3))
def test_orders_are_inverse_and_those_of_the_memory(rows: int, channels: int, side: int) -> None:
    weight = laid(torch.randn(rows, channels, side, side), last=True)
    assert taps_of(weight) == side * side
    logical = torch.arange(weight[0].numel())[:, None]
    memory = in_order(logical, side * side)
    for row in range(rows):
        numbers = [weight[row].flatten()[place].item() for place in memory[:, 0].tolist()]
        assert numbers == as_rows(weight, side * side)[row].tolist()
    assert torch.equal(out_of_order(memory, side * side), logical)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 2, 2)])
def test_what_lies_otherwise_is_copied_in_logical_order(shape: tuple[int, ...]) -> None:
    weight = torch.randn(*reversed(shape)).permute(*reversed(range(len(shape))))
    assert taps_of(weight) == 1
    assert torch.equal(as_rows(weight, 1), weight.contiguous().view(shape[0], -1))


@given(SIZES, SIZES, SIZES, st.lists(SIZES, max_size=3), st.booleans())
def test_exchanging_equals_loops_and_is_its_own_inverse(
    groups: int, inputs: int, outputs: int, taps: list[int], last: bool
) -> None:
    """The weight of an input and an output of the same group, wherever it lies."""
    weight = laid(torch.randn(groups * inputs, outputs, *taps), last)
    found = exchanged(weight, groups)
    assert found.shape == (groups * outputs, inputs, *taps)
    for group, one, other in product(range(groups), range(inputs), range(outputs)):
        assert torch.equal(found[group * outputs + other, one], weight[group * inputs + one, other])
    assert torch.equal(exchanged(found, groups), weight)


@given(SIZES, SIZES, st.lists(SIZES, max_size=3), st.booleans(), st.booleans())
def test_norms_are_euclidean_in_any_order(
    rows: int, channels: int, taps: list[int], last: bool, transposed: bool
) -> None:
    tensor = laid(torch.randn(rows, channels, *taps), last)
    one = tensor.transpose(0, 1) if transposed else tensor
    found = gradient_norms([one, 2 * one])
    for norm, factor in zip(found, (1, 2), strict=True):
        assert norm.item() == pytest.approx(factor * math.sqrt(sum(number**2 for number in one.flatten().tolist())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norms_are_taken_in_single_precision(dtype: torch.dtype) -> None:
    found = gradient_norms([torch.tensor([1.0, -1.0, 1.0], dtype=dtype)])
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(math.sqrt(3), rel=1e-6)
