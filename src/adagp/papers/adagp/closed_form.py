"""The shared predictor as a few matrix products: its predictions, and the gradient of its loss without autograd.

The same numbers as `PredictorNetwork` under autograd but for rounding, for a fraction of the work. Written for all rows of
all sites at once, with `V = [weight, bias]` of the fully connected layer and `X` the rows' features and a 1, a site's
prediction is `X V'` and its loss `c |X V' - T|^2`, so that

    the gradient at V  is  2c (V X'X - T'X)         the gradient at X  is  2c (X V'V - T V)

Neither needs the prediction itself: the Gram matrices `X'X` and `V'V` are tiny, and the true gradient `T` is read twice where
it lies, in whatever order its memory has. The 3x3 convolution over a small grid is a matrix as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from adagp.layers.weight_layout import in_order, out_of_order, square
from adagp.papers.adagp.network import PredictorNetwork

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class RowBlock:
    """The rows `start` to `stop` of a batch, which belong to one site: `width` numbers each, `taps` apart (see `layout`).

    A squared error counts `share` times in the loss.
    """

    start: int
    stop: int
    width: int
    taps: int
    share: float


def parts_of(sizes: Sequence[tuple[int, int, int]], weights: Sequence[float] | None = None) -> list[RowBlock]:
    """Return the parts of sites with `(rows, width, taps)`, one after the other.

    The loss has the mean over each part, times its weight, which is 1 if none is given.
    """
    parts, start = [], 0
    for place, (rows, width, taps) in enumerate(sizes):
        weight = 1.0 if weights is None else weights[place]
        parts.append(RowBlock(start, start + rows, width, taps, weight / max(1, rows * width)))
        start += rows
    return parts


class ClosedForm:
    """Predicts with a network, and differentiates its loss. Rows of a batch are given as `summaries`, site after site.

    What is as large as the rows of a batch is written into memory that is kept from one batch to the next.
    """

    def __init__(self, network: PredictorNetwork) -> None:
        self.network = network
        self._kept: dict[str, Tensor] = {}
        self._layer: _Layer | None = None

    @torch.no_grad()
    def predict(
        self, summaries: Sequence[Tensor], context: Tensor | None, parts: Sequence[RowBlock], results: Sequence[Tensor]
    ) -> Tensor:
        """Write the gradient rows of each part into its `results`, `(rows, width)` in the order that its memory has.

        Return the norms of the results, which need not be read for it.
        """
        found, layer = self._features(self._pictures(summaries), context), self._newest_layer()
        squares = []
        for part, result in zip(parts, results, strict=True):
            seen = found[part.start : part.stop]
            torch.mm(seen, layer.rows(part.width, part.taps).T, out=result)
            squares.append(_square(layer, seen, part, result))
        return torch.stack(squares).clamp_(min=0).sqrt_()

    @torch.no_grad()
    def learn(
        self,
        summaries: Sequence[Tensor],
        context: Tensor | None,
        parts: Sequence[RowBlock],
        truths: Sequence[Tensor],
        norms: Tensor,
        scales: Sequence[float] | None = None,
    ) -> Tensor:
        """Put the gradient of the loss into the network's `.grad`, and return the loss.

        It is the sum over the parts of the squared errors between the prediction and the truth over its scale, which count as
        the part's share says. `parts` are sorted by width; `truths` are `(rows, width)` in memory order, with these `norms`.
        """
        pictures = self._pictures(summaries)
        self._layer = None  # a step follows, and a fused optimizer's does not show in the version of a tensor
        found, layer = self._features(pictures, context), _Layer(self.network)
        at_features = self._memory("at_features", len(found), found.shape[1] - 1)
        grams: dict[int, Tensor] = {}
        sums: dict[tuple[int, int], Tensor] = {}
        factors = scales or [1.0] * len(parts)
        for part, truth, scale in zip(parts, truths, factors, strict=True):
            seen, key = found[part.start : part.stop], (part.width, part.taps)
            _add_product(sums, key, seen.T, truth, 2 * part.share / scale)
            at_part = torch.mm(truth, layer.rows(*key)[:, :-1], out=at_features[part.start : part.stop])
            if scale != 1:
                at_part.div_(scale)
        for width, share, rows in _alike(parts):
            seen = found[rows]
            _add_product(grams, width, seen.T, seen, 2 * share)
            at_features[rows].addmm_(seen, layer.gram(width), beta=-2 * share, alpha=2 * share)
        gradient = layer.times(grams)
        half = torch.dot(layer.matrix.view(-1), gradient.view(-1)) / 2
        for (width, taps), one in sums.items():
            gradient[:width] -= out_of_order(one.T, taps)
        self._set_gradients(gradient, pictures, found, at_features)
        shares = norms.new_tensor([part.share / scale**2 for part, scale in zip(parts, factors, strict=True)])
        return torch.dot(layer.matrix.view(-1), gradient.view(-1)) - half + torch.dot(norms.square(), shares)

    def _newest_layer(self) -> "_Layer":
        """Return the fully connected layer as it is now: it stays the same from one GP batch to the next."""
        if self._layer is None or self._layer.version != _version(self.network):
            self._layer = _Layer(self.network)
        return self._layer

    def _memory(self, name: str, rows: int, width: int) -> Tensor:
        if name not in self._kept or self._kept[name].shape != (rows, width):
            self._kept[name] = self.network.readout.weight.new_empty(rows, width)
        return self._kept[name]

    def _pictures(self, summaries: Sequence[Tensor]) -> Tensor:
        """Return all rows of summaries `(rows, 1, grid, grid)` as `(rows, cells + 1)`.

        The last number of each is a 1, so that biases are rows of matrices.
        """
        flat = [summary.flatten(1) for summary in summaries]
        pictures = self._memory("pictures", sum(map(len, flat)), flat[0].shape[1] + 1)
        pictures[:, -1] = 1
        torch.cat(flat, out=pictures[:, :-1])
        return pictures

    def _features(self, pictures: Tensor, context: Tensor | None) -> Tensor:
        """Return `(rows, features + 1)`: what the fully connected layer sees of the pictures, and a 1."""
        convolution = self.network.convolution
        channels, cells = convolution.out_channels, pictures.shape[1] - 1
        hidden = channels * cells
        assert convolution.bias is not None
        kernel = convolution.weight.view(channels, -1) @ _taps(round(cells**0.5), pictures.device)
        matrix = pictures.new_zeros(cells + 1, self.network.readout.in_features + 1)
        matrix[:-1, :hidden].view(cells, channels, cells).copy_(kernel.view(channels, cells, cells).transpose(0, 1))
        matrix[-1, :hidden].view(channels, cells).copy_(convolution.bias[:, None])
        matrix[-1, -1] = 1
        found = torch.mm(pictures, matrix, out=self._memory("features", len(pictures), matrix.shape[1])).clamp_(min=0)
        if context is not None:
            found[:, hidden:-1] = context
        return found

    def _set_gradients(self, at_layer: Tensor, pictures: Tensor, found: Tensor, at_features: Tensor) -> None:
        convolution, readout = self.network.convolution, self.network.readout
        channels, cells = convolution.out_channels, pictures.shape[1] - 1
        at_hidden, hidden = (one[:, : channels * cells] for one in (at_features, found))
        torch.ops.aten.threshold_backward.grad_input(at_hidden, hidden, 0, grad_input=at_hidden)
        at_matrix = pictures.T @ at_hidden
        at_kernel = at_matrix[:-1].view(cells, channels, cells).transpose(0, 1).reshape(channels, -1)
        kernel = at_kernel @ _taps(round(cells**0.5), pictures.device).T
        assert convolution.bias is not None
        convolution.weight.grad = kernel.view_as(convolution.weight)
        convolution.bias.grad = at_matrix[-1].view(channels, cells).sum(1)
        readout.weight.grad = at_layer[:, :-1].contiguous()
        readout.bias.grad = at_layer[:, -1].contiguous()


class _Layer:
    """The fully connected layer with its bias as one matrix, its rows in the orders that were asked for, its Gram matrices."""

    def __init__(self, network: PredictorNetwork) -> None:
        self.version = _version(network)
        self.matrix = torch.cat([network.readout.weight, network.readout.bias[:, None]], dim=1)
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._width, self._gram = 0, self.matrix.new_zeros(self.matrix.shape[1], self.matrix.shape[1] - 1)
        self._exact_grams: dict[int, Tensor] = {}

    def rows(self, width: int, taps: int) -> Tensor:
        """Return the first `width` rows, in memory order."""
        if (width, taps) not in self._rows:
            self._rows[width, taps] = in_order(self.matrix[:width], taps)
        return self._rows[width, taps]

    def gram(self, width: int) -> Tensor:
        """Return the products of the first `width` rows with themselves, bias aside; widths that are asked for only grow."""
        if width > self._width:
            more = self.matrix[self._width : width]
            self._gram = torch.addmm(self._gram, more.T, more[:, :-1])
            self._width = width
        return self._gram

    def square(self, seen: Tensor, width: int) -> Tensor:
        """Return the sum of squares of the product of `seen` with the first `width` rows: that of their Gram matrices.

        In double precision, as the product can be far smaller than its factors.
        """
        seen = seen.double()
        grams = self._exact_grams
        if width not in grams:
            known = max((one for one in grams if one < width), default=0)
            more = self.matrix[known:width].double()
            grams[width] = more.T @ more + grams.get(known, 0)
        return torch.dot((seen.T @ seen).view(-1), grams[width].view(-1))

    def times(self, grams: Mapping[int, Tensor]) -> Tensor:
        """Return the matrix times the matrices of all widths that reach a row, row by row."""
        result = torch.zeros_like(self.matrix)
        widths, total = [0, *sorted(grams)], self.matrix.new_zeros(())
        for low, high in reversed(list(pairwise(widths))):
            total = total + grams[high]
            torch.mm(self.matrix[low:high], total, out=result[low:high])
        return result


def _version(network: PredictorNetwork) -> tuple[int, ...]:
    """Return numbers of which one is another after a change of the fully connected layer (but see `learn`)."""
    weight, bias = network.readout.weight, network.readout.bias
    return weight._version, bias._version, weight.data_ptr(), bias.data_ptr()


def _square(layer: _Layer, seen: Tensor, part: RowBlock, result: Tensor) -> Tensor:
    """Return the sum of squares of a part's result, which is read only where that is less work than doing without.

    Other devices than the CPU read fast, and not all have double precision.
    """
    read = part.width < 16 * seen.shape[1] or seen.device.type != "cpu"
    return square(result) if read else layer.square(seen, part.width).float()


def _add_product(sums: dict[_Key, Tensor], key: _Key, one: Tensor, other: Tensor, share: float) -> None:
    """Add `share` times a matrix product to the sum of `key`."""
    if key in sums:
        sums[key].addmm_(one, other, alpha=share)
    else:
        sums[key] = (one @ other).mul_(share)


def _alike(parts: Sequence[RowBlock]) -> Iterator[tuple[int, float, slice]]:
    """Return width, share of a number in the loss, and rows of neighbouring parts in which these two are the same."""
    for (width, share), group in groupby(parts, key=lambda part: (part.width, part.share)):
        together = list(group)
        yield width, share, slice(together[0].start, together[-1].stop)


@lru_cache(maxsize=16)
def _taps(grid: int, device: torch.device) -> Tensor:
    """Return `(9, cells * cells)`: which cell of the input meets which tap of the kernel for which cell of the output."""
    cells = grid * grid
    inputs = torch.eye(cells, dtype=torch.float32, device=device).view(cells, 1, grid, grid)
    kernels = torch.eye(9, dtype=torch.float32, device=device).view(9, 1, 3, 3)
    return F.conv2d(inputs, kernels, padding=1).view(cells, 9, cells).transpose(0, 1).reshape(9, -1)
