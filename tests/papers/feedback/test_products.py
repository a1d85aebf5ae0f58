"""The two products of feedback against one plain product, and autograd."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import nn

from adagp.layers.sites import survey
from adagp.papers.feedback.products import (
    BLOCK_ROWS,
    LONG_THREADS,
    im2col_weight_gradient,
    suits_im2col,
    weighted_sums,
)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", [1, BLOCK_ROWS, BLOCK_ROWS + 1, 5 * BLOCK_ROWS - 3])
def test_weighted_sums_equal_one_product(rows: int) -> None:
    for length, step, into_out in product((5, LONG_THREADS, LONG_THREADS + 1), (1, 3), (False, True)):
        case = f"length {length}, step {step}, out {into_out}"
        generator = torch.Generator().manual_seed(0)
        many = torch.randn(rows * step, length, generator=generator)[::step]
        weights = torch.randn(11, rows, generator=generator)
        out = torch.full((12, length), torch.nan)[:11] if into_out else None
        found = weighted_sums(weights, many, out)
        wanted = (weights.double() @ many.double()).float()
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4), case
        assert out is None or found.data_ptr() == out.data_ptr(), case


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, 3, padding=1),
        nn.Conv2d(3, 5, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
        nn.Conv2d(3, 5, 1, stride=2),
        nn.Conv2d(3, 5, 3, padding="same"),
        nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_im2col_equals_autograd(layer: nn.Conv2d) -> None:
    (site,) = survey(layer).sites
    inputs = torch.randn(4, 3, 7, 8).contiguous(memory_format=torch.channels_last)
    output = layer(inputs)
    gradient = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, layer.weight, gradient)
    assert suits_im2col(site, inputs, output.shape)
    torch.testing.assert_close(im2col_weight_gradient(site, inputs, gradient), expected, rtol=1e-4, atol=1e-4)


def test_im2col_is_not_used_for_other_layers_and_large_maps() -> None:
    for layer, inputs in (
        (nn.Conv2d(2, 4, 3, groups=2), torch.randn(1, 2, 5, 5)),
        (nn.ConvTranspose2d(2, 4, 3), torch.randn(1, 2, 5, 5)),
        (nn.Conv1d(2, 4, 3), torch.randn(1, 2, 5)),
        (nn.Conv2d(2, 4, 3), torch.randn(1, 2, 11, 11)),
        (nn.Linear(2, 4), torch.randn(3, 2)),
    ):
        (site,) = survey(layer).sites
        assert not suits_im2col(site, inputs, layer(inputs).shape)
