"""Layers whose weight counts its outputs on axis 1, drawn for tests, and a stand-in for the Conv1D of transformers."""

from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

DIMENSIONS = st.integers(1, 3)
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class Conv1D(nn.Module):
    """What GPT-2 has for a linear layer: its weight is `(inputs, outputs)`."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the product."""
        return torch.addmm(self.bias, inputs.reshape(-1, inputs.shape[-1]), self.weight).view(*inputs.shape[:-1], -1)


Conv1D.__module__ = "transformers.pytorch_utils"


@st.composite
def transposed_convolutions(
    draw: st.DrawFn, dimensions: st.SearchStrategy[int] = DIMENSIONS
) -> tuple[nn.Module, Tensor]:
    """Draw a transposed convolution in double precision, with groups, and an input that fits it."""
    torch.manual_seed(draw(st.integers(0, 99)))
    count, groups = draw(dimensions), draw(st.sampled_from([1, 2, 3]))
    bounds = [(1, 3), (1, 3), (0, 2), (1, 2)]
    kernel, stride, padding, dilation = (draw(st.tuples(*[st.integers(*one)] * count)) for one in bounds)
    further = [draw(st.integers(0, max(pair) - 1)) for pair in zip(stride, dilation, strict=True)]
    size = [draw(st.integers(1, 4)) for _ in range(count)]
    sides = zip(size, kernel, stride, padding, dilation, further, strict=True)
    assume(all((n - 1) * s - 2 * p + (k - 1) * d + more >= 0 for n, k, s, p, d, more in sides))
    inputs, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))
    make: Any = TRANSPOSED[count]
    layer = make(inputs, outputs, kernel, stride, padding, tuple(further), groups, bias=False, dilation=dilation)
    samples = draw(st.integers(1, 3))
    return layer.double(), torch.randn(samples, inputs, *size, dtype=torch.double)


@st.composite
def output_last(draw: st.DrawFn, dimensions: st.SearchStrategy[int] = DIMENSIONS) -> tuple[nn.Module, Tensor]:
    """Draw a transposed convolution, or one of GPT-2's layers, and an input that fits it."""
    if draw(st.integers(0, 3)):
        return draw(transposed_convolutions(dimensions))
    torch.manual_seed(draw(st.integers(0, 99)))
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    return Conv1D(draw(st.integers(1, 4)), 3).double(), torch.randn(*shape, 3, dtype=torch.double)
