"""Sums in steps against one product."""

import pytest
import torch

from adagp.sources.feedback.products import LONG, TOGETHER, weighted_sums


@pytest.mark.parametrize("rows", [1, TOGETHER, TOGETHER + 1, 5 * TOGETHER - 3])
@pytest.mark.parametrize("length", [5, LONG])
@pytest.mark.parametrize("step", [1, 3])
def test_equals_one_product(rows: int, length: int, step: int) -> None:
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(rows * step, length, generator=generator)[::step]
    weights = torch.randn(11, rows, generator=generator)
    expected = (weights.double() @ many.double()).float()
    torch.testing.assert_close(weighted_sums(weights, many), expected, rtol=1e-4, atol=1e-4)
