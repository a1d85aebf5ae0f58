"""The shared predictor as a few matrix products: its predictions, and the gradient of its loss without autograd.

The same numbers as `PredictorNetwork` under autograd but for rounding, for a fraction of the work. Written for all rows of
all sites at once, with `V = [weight, bias]` of the fully connected layer and `X` the rows' features and a 1, a site's
prediction is `X V'` and its loss `c |X V' - T|^2`, so that

    the gradient at V  is  2c (V X'X - T'X)         the gradient at X  is  2c (X V'V - T V)

Neither needs the prediction itself: the Gram matrices `X'X` and `V'V` are tiny, and the true gradient `T` is read twice where
it lies, in whatever order its memory has. The 3x3 convolution over a small grid is a matrix as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from adagp.predictor.layout import in_order, out_of_order
from adagp.predictor.network import PredictorNetwork


@dataclass(frozen=True)
class Part:
    """The rows `start` to `stop` of a batch, which belong to one site: `width` numbers each, `taps` apart (see `layout`)."""

    start: int
    stop: int
    width: int
    taps: int


def parts_of(sizes: Sequence[tuple[int, int, int]]) -> list[Part]:
    """Return the parts of sites with `(rows, width, taps)`, one after the other."""
    parts, start = [], 0
    for rows, width, taps in sizes:
        parts.append(Part(start, start + rows, width, taps))
        start += rows
    return parts


@torch.no_grad()
def features(network: PredictorNetwork, pictures: Tensor, context: Tensor | None = None) -> Tensor:
    """Return `(rows, features + 1)`: what the fully connected layer sees of pictures `(rows, grid * grid)`, and a 1."""
    channels, cells = network.convolution.out_channels, pictures.shape[1]
    spread = _taps(round(cells**0.5), pictures.device)
    kernel = network.convolution.weight.view(channels, -1) @ spread
    matrix = kernel.view(channels, cells, cells).transpose(0, 1).reshape(cells, channels * cells)
    bias = network.convolution.bias
    assert bias is not None
    found = pictures.new_empty(len(pictures), network.readout.in_features + 1)
    hidden = torch.addmm(bias.repeat_interleave(cells), pictures, matrix)
    torch.clamp(hidden, min=0, out=found[:, : channels * cells])
    if context is not None:
        found[:, channels * cells : -1] = context
    found[:, -1] = 1
    return found


@torch.no_grad()
def predict(network: PredictorNetwork, found: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Return the gradient rows `(rows, width)` of each part, in the order that its memory has."""
    layer = _Layer(network)
    return [found[part.start : part.stop] @ layer.rows(part.width, part.taps).T for part in parts]


@torch.no_grad()
def learn(
    network: PredictorNetwork,
    pictures: Tensor,
    context: Tensor | None,
    parts: Sequence[Part],
    truths: Sequence[Tensor],
    scales: Tensor | None = None,
) -> Tensor:
    """Put the gradient of the loss into the network's `.grad`, and return the loss.

    It is the sum over the parts of the mean squared error between the prediction and the truth over its scale. `parts` are
    sorted by width; `truths` are `(rows, width)` in memory order, `scales` one number a part.
    """
    device = pictures.device
    counts = [part.stop - part.start for part in parts]
    shares = torch.tensor([1 / (count * part.width) for count, part in zip(counts, parts, strict=True)], device=device)
    inverse = torch.ones_like(shares) if scales is None else 1 / scales
    doubled, aimed = _by_row(2 * shares, counts), _by_row(2 * shares * inverse, counts)
    found = features(network, pictures, context)
    layer = _Layer(network)
    gradient = torch.zeros_like(layer.matrix)
    products = torch.empty_like(found)
    weighted = found * doubled
    at_features = torch.empty_like(found)
    for width, start, stop in _groups(parts):
        rows = slice(start, stop)
        gradient[:width] += layer.matrix[:width] @ (weighted[rows].T @ found[rows])
        torch.mm(weighted[rows], layer.gram(width), out=at_features[rows])
    half = torch.dot(layer.matrix.view(-1), gradient.view(-1)) / 2
    aims = found * aimed
    sums: dict[tuple[int, int], Tensor] = {}
    for part, truth in zip(parts, truths, strict=True):
        rows, key = slice(part.start, part.stop), (part.width, part.taps)
        torch.mm(truth, layer.rows(*key), out=products[rows])
        if key in sums:
            sums[key].addmm_(aims[rows].T, truth)
        else:
            sums[key] = aims[rows].T @ truth
    for (width, taps), one in sums.items():
        gradient[:width] -= out_of_order(one.T, taps)
    at_features.addcmul_(products, aimed, value=-1)
    _set_gradients(network, gradient, pictures, found, at_features)
    sizes = torch.stack(torch._foreach_norm(list(truths))) * inverse
    return torch.dot(layer.matrix.view(-1), gradient.view(-1)) - half + torch.dot(shares, sizes.square())


class _Layer:
    """The fully connected layer with its bias as one matrix, its rows in the orders that were asked for, its Gram matrices."""

    def __init__(self, network: PredictorNetwork) -> None:
        self.matrix = torch.cat([network.readout.weight, network.readout.bias[:, None]], dim=1)
        self._ordered: dict[tuple[int, int], Tensor] = {}
        self._width, self._gram = 0, self.matrix.new_zeros(2 * self.matrix.shape[1:])

    def rows(self, width: int, taps: int) -> Tensor:
        """Return the first `width` rows, in memory order."""
        if (width, taps) not in self._ordered:
            self._ordered[width, taps] = in_order(self.matrix[:width], taps)
        return self._ordered[width, taps]

    def gram(self, width: int) -> Tensor:
        """Return the Gram matrix of the first `width` rows; widths that are asked for only grow."""
        more = self.matrix[self._width : width]
        self._gram = torch.addmm(self._gram, more.T, more)
        self._width = width
        return self._gram


def _groups(parts: Sequence[Part]) -> Iterator[tuple[int, int, int]]:
    """Return width, first and last row of the parts that are equally wide."""
    for width, alike in groupby(parts, key=lambda part: part.width):
        together = list(alike)
        yield width, together[0].start, together[-1].stop


def _by_row(values: Tensor, counts: Sequence[int]) -> Tensor:
    """Return a column with the value of each part in all of its rows."""
    return values.repeat_interleave(torch.tensor(counts, device=values.device), output_size=sum(counts))[:, None]


def _set_gradients(
    network: PredictorNetwork, at_layer: Tensor, pictures: Tensor, found: Tensor, at_features: Tensor
) -> None:
    channels, cells = network.convolution.out_channels, pictures.shape[1]
    hidden = channels * cells
    at_hidden = at_features[:, :hidden] * (found[:, :hidden] > 0)
    at_matrix = (pictures.T @ at_hidden).view(cells, channels, cells).transpose(0, 1).reshape(channels, -1)
    kernel = at_matrix @ _taps(round(cells**0.5), pictures.device).T
    network.convolution.weight.grad = kernel.view_as(network.convolution.weight)
    network.readout.weight.grad = at_layer[:, :-1].contiguous()
    network.readout.bias.grad = at_layer[:, -1].contiguous()
    assert network.convolution.bias is not None
    network.convolution.bias.grad = at_hidden.sum(0).view(channels, cells).sum(1)


@lru_cache(maxsize=16)
def _taps(grid: int, device: torch.device) -> Tensor:
    """Return `(9, cells * cells)`: which cell of the input meets which tap of the kernel for which cell of the output."""
    cells = grid * grid
    inputs = torch.eye(cells, device=device).view(cells, 1, grid, grid)
    kernels = torch.eye(9, device=device).view(9, 1, 3, 3)
    return F.conv2d(inputs, kernels, padding=1).view(cells, 9, cells).transpose(0, 1).reshape(9, -1)
