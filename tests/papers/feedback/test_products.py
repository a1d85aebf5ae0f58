"""Sums in steps against one product."""

from collections.abc import Iterator

import pytest
import torch

from adagp.papers.feedback.products import LONG_SHARED, TOGETHER, weighted_sums


@pytest.fixture(params=[1, 2, 3], autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, TOGETHER, TOGETHER + 1, 5 * TOGETHER - 3])
@pytest.mark.parametrize("length", [5, LONG_SHARED, LONG_SHARED + 1])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("given", [False, True])
def test_equals_one_product(rows: int, length: int, step: int, given: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(rows * step, length, generator=generator)[::step]
    weights = torch.randn(11, rows, generator=generator)
    out = torch.full((12, length), torch.nan)[:11] if given else None
    found = weighted_sums(weights, many, out)
    torch.testing.assert_close(found, (weights.double() @ many.double()).float(), rtol=1e-4, atol=1e-4)
    assert out is None or found.data_ptr() == out.data_ptr()
