"""Masks of the largest numbers against sorting in Python, and the chunked estimate against the loop over single numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.papers.procrustes.quantile import QuantileEstimate, keep_largest


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=30), st.integers(0, 35), st.integers(1, 3)
)
def test_the_largest_are_kept_and_of_equal_ones_the_first(numbers: list[float], count: int, parts: int) -> None:
    sizes = list(torch.tensor(numbers).tensor_split(parts))
    masks = torch.cat(keep_largest(sizes, count)).tolist()
    order = sorted(range(len(numbers)), key=lambda place: (-numbers[place], place))
    expected = {place for place in order[:count] if numbers[place] > 0}
    assert {place for place, kept in enumerate(masks) if kept} == expected
    assert sum(masks) <= count


def scalar_loop(sizes: torch.Tensor, value: float, below: float, rate: float) -> tuple[list[bool], float]:
    """The rule for single numbers, from the last to the first."""
    kept = []
    for size in reversed(sizes.tolist()):
        kept.append(size > value)
        value *= 1 + rate * below if kept[-1] else 1 - rate * (1 - below)
    return kept[::-1], value


def test_a_chunk_of_one_number_is_the_loop_itself() -> None:
    sizes = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = QuantileEstimate(0.9, 200)
    estimate.chunk = 1
    (mask,) = estimate.masks([sizes])
    expected, value = scalar_loop(sizes, 1e-2, 0.9, 1e-3)
    assert mask.tolist() == expected
    assert estimate.value == pytest.approx(value, rel=1e-9)


def test_chunks_keep_nearly_the_share_of_the_loop() -> None:
    sizes = torch.randn(50_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).abs()
    estimate, value = QuantileEstimate(0.9, 5000), 1e-2
    for _ in range(3):
        (mask,) = estimate.masks([sizes])
        expected, value = scalar_loop(sizes, value, 0.9, 1e-3)
        assert float(mask.double().mean()) == pytest.approx(sum(expected) / len(sizes), abs=3e-3)
    assert estimate.value == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_three_passes_reach_the_share_at_any_scale(share: float, scale: float) -> None:
    """Within 1% of the weights, from a start that is far too high or too low."""
    total = 1_000_000
    sizes = scale * torch.randn(total, generator=torch.Generator().manual_seed(2)).abs()
    estimate = QuantileEstimate(1 - share, int(share * total))
    for _ in range(3):
        masks = estimate.masks(list(sizes.split(300_000)))
    assert float(torch.cat(masks).double().mean()) == pytest.approx(share, abs=0.01)


def test_the_estimate_scales_with_the_numbers() -> None:
    sizes = torch.rand(30_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    one, other = QuantileEstimate(0.8, 6000, start=0.25), QuantileEstimate(0.8, 6000, start=1.0)
    (mask,), (same) = one.masks([sizes]), other.masks([4 * sizes])
    assert torch.equal(mask, same[0])
    assert other.value == pytest.approx(4 * one.value)


def test_nothing_but_zeros_leaves_an_estimate_that_can_rise_again() -> None:
    estimate = QuantileEstimate(0.5, 10, start=1e-29, rate=0.5)
    (mask,) = estimate.masks([torch.zeros(10_000)])
    assert not mask.any()
    assert estimate.value == 1e-30
