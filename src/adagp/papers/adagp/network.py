"""ADA-GP's predictor: one small network for all layers of a model, and the same in closed form.

`ClosedForm` computes the predictions, and the gradient of the loss, with a few matrix products and without autograd: the same
numbers as `PredictorNetwork` under autograd up to rounding, for a fraction of the work. For the rows of one site, let
`V = [weight, bias]` be the rows of the fully connected layer that it uses, `X` the rows' features and a 1, and `T` the true
gradient. The prediction is `X V'`, the loss `c |X V' - T|^2`, so that

    the gradient at V  is  2c (V X'X - T'X)         the gradient at X  is  2c (X V'V - T V)

Neither needs the prediction itself: the Gram matrices `X'X` and `V'V` are tiny, and `T` is read twice, in its own memory order.
The 3x3 convolution over a small grid is written as a matrix as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.layers.weights import from_memory_order, square, to_memory_order

_Key = TypeVar("_Key")


class PredictorNetwork(nn.Module):
    """One small convolution and one fully connected layer, shared by all sites.

    A sample is a `grid` x `grid` picture of one output channel; its prediction is that channel's row of the weight gradient.
    The fully connected layer is as wide as the largest site's row; for a smaller site only the rows of the layer that are
    needed are multiplied, so that masked outputs cost nothing.

    The fully connected layer starts at zero: an untrained predictor predicts no gradient, not noise. It can take `context` more
    features that all samples of a batch share.
    """

    def __init__(self, width: int, grid: int = 4, channels: int = 4, context: int = 0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.readout = nn.Linear(channels * grid * grid + context, width)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(
        self, summaries: Sequence[Tensor], widths: Sequence[int], context: Tensor | None = None
    ) -> list[Tensor]:
        """Return the gradient rows `(rows, width)` of each site from its summary `(rows, 1, grid, grid)`.

        The convolution runs on the rows of all sites at once; each site then uses its own slice of the fully connected layer.
        """
        features = F.relu(self.convolution(torch.cat(list(summaries)))).flatten(1)
        if context is not None:
            features = torch.cat([features, context.expand(len(features), -1)], dim=1)
        parts = features.split([len(summary) for summary in summaries])
        weight, bias = self.readout.weight, self.readout.bias
        return [F.linear(part, weight[:width], bias[:width]) for part, width in zip(parts, widths, strict=True)]


@dataclass(frozen=True)
class RowBlock:
    """The rows `start` to `stop` of a batch, which belong to one site: `width` numbers each, in the memory order of `taps`.

    `taps` is the number of kernel taps if channels are last in memory, else 1 (`adagp.layers.weights`). A squared error
    has the weight `share` in the loss.
    """

    start: int
    stop: int
    width: int
    taps: int
    share: float


def row_blocks(sizes: Sequence[tuple[int, int, int]], weights: Sequence[float] | None = None) -> list[RowBlock]:
    """Return the blocks of sites with `(rows, width, taps)`, one after the other.

    The loss has the mean over each block, times its weight (1 by default).
    """
    blocks, start = [], 0
    for index, (rows, width, taps) in enumerate(sizes):
        weight = 1.0 if weights is None else weights[index]
        blocks.append(RowBlock(start, start + rows, width, taps, weight / max(1, rows * width)))
        start += rows
    return blocks


class ClosedForm:
    """Predicts with a network, and differentiates its loss; `summaries` are the rows of a batch, site after site.

    Buffers as large as the rows of a batch are reused from one batch to the next.
    """

    def __init__(self, network: PredictorNetwork) -> None:
        self.network = network
        self._buffers: dict[str, Tensor] = {}
        self._layer: _Layer | None = None

    @torch.no_grad()
    def predict(
        self, summaries: Sequence[Tensor], context: Tensor | None, blocks: Sequence[RowBlock], results: Sequence[Tensor]
    ) -> Tensor:
        """Write the gradient rows of each block into its `results`, `(rows, width)` in memory order.

        Return the norms of the results; for wide ones these come from Gram matrices, without reading the result again.
        """
        all_features, layer = self._features(self._pictures(summaries), context), self._current_layer()
        squares = []
        for block, result in zip(blocks, results, strict=True):
            features = all_features[block.start : block.stop]
            torch.mm(features, layer.rows(block.width, block.taps).T, out=result)
            squares.append(_square(layer, features, block, result))
        return torch.stack(squares).clamp_(min=0).sqrt_()

    @torch.no_grad()
    def learn(
        self,
        summaries: Sequence[Tensor],
        context: Tensor | None,
        blocks: Sequence[RowBlock],
        truths: Sequence[Tensor],
        norms: Tensor,
        scales: Sequence[float] | None = None,
    ) -> Tensor:
        """Put the gradient of the loss into the network's `.grad`, and return the loss.

        The loss is the sum over the blocks of `share` times the squared errors between the prediction and the truth divided by
        its scale. `blocks` are sorted by width; `truths` are `(rows, width)` in memory order, with these `norms`.
        """
        pictures = self._pictures(summaries)
        self._layer = None  # a step follows, and a fused optimizer does not change the version of a tensor
        features, layer = self._features(pictures, context), _Layer(self.network)
        feature_gradient = self._buffer("feature_gradient", len(features), features.shape[1] - 1)
        grams: dict[int, Tensor] = {}  # 2c X'X by width
        products: dict[tuple[int, int], Tensor] = {}  # 2c X'T by width and memory order
        factors = scales or [1.0] * len(blocks)
        for block, truth, scale in zip(blocks, truths, factors, strict=True):
            block_features, key = features[block.start : block.stop], (block.width, block.taps)
            _add_product(products, key, block_features.T, truth, 2 * block.share / scale)
            at_block = torch.mm(truth, layer.rows(*key)[:, :-1], out=feature_gradient[block.start : block.stop])
            if scale != 1:
                at_block.div_(scale)
        for width, share, rows in _merged(blocks):
            block_features = features[rows]
            _add_product(grams, width, block_features.T, block_features, 2 * share)
            # It holds T V from the loop above, and becomes 2c (X V'V - T V).
            feature_gradient[rows].addmm_(block_features, layer.gram(width), beta=-2 * share, alpha=2 * share)
        gradient = layer.times(grams)  # 2c V X'X
        predicted_square = torch.dot(layer.matrix.view(-1), gradient.view(-1)) / 2  # c |X V'|^2
        for (width, taps), product in products.items():
            gradient[:width] -= from_memory_order(product.T, taps)  # 2c (V X'X - T'X)
        self._set_gradients(gradient, pictures, features, feature_gradient)
        # c |X V' - T|^2  =  <V, 2c (V X'X - T'X)> - c |X V'|^2 + c |T|^2
        shares = norms.new_tensor([block.share / scale**2 for block, scale in zip(blocks, factors, strict=True)])
        product_with_layer = torch.dot(layer.matrix.view(-1), gradient.view(-1))
        return product_with_layer - predicted_square + torch.dot(norms.square(), shares)

    def _current_layer(self) -> "_Layer":
        """Return the fully connected layer, with what was computed of it since it last changed."""
        if self._layer is None or self._layer.version != _version(self.network):
            self._layer = _Layer(self.network)
        return self._layer

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        if name not in self._buffers or self._buffers[name].shape != (rows, width):
            self._buffers[name] = self.network.readout.weight.new_empty(rows, width)
        return self._buffers[name]

    def _pictures(self, summaries: Sequence[Tensor]) -> Tensor:
        """Return all rows of summaries `(rows, 1, grid, grid)` as `(rows, cells + 1)`.

        The last number of each row is a 1, so that biases are rows of matrices.
        """
        flat = [summary.flatten(1) for summary in summaries]
        pictures = self._buffer("pictures", sum(map(len, flat)), flat[0].shape[1] + 1)
        pictures[:, -1] = 1
        torch.cat(flat, out=pictures[:, :-1])
        return pictures

    def _features(self, pictures: Tensor, context: Tensor | None) -> Tensor:
        """Return `(rows, features + 1)`: the inputs of the fully connected layer, and a 1."""
        convolution = self.network.convolution
        channels, cells = convolution.out_channels, pictures.shape[1] - 1
        hidden = channels * cells
        assert convolution.bias is not None
        # The convolution as a matrix: from the cells and a 1 to the channels' cells, the context (added below) and a 1.
        kernel = convolution.weight.view(channels, -1) @ _taps(round(cells**0.5), pictures.device)
        matrix = pictures.new_zeros(cells + 1, self.network.readout.in_features + 1)
        matrix[:-1, :hidden].view(cells, channels, cells).copy_(kernel.view(channels, cells, cells).transpose(0, 1))
        matrix[-1, :hidden].view(channels, cells).copy_(convolution.bias[:, None])
        matrix[-1, -1] = 1
        buffer = self._buffer("features", len(pictures), matrix.shape[1])
        features = torch.mm(pictures, matrix, out=buffer).clamp_(min=0)
        if context is not None:
            features[:, hidden:-1] = context
        return features

    def _set_gradients(self, at_layer: Tensor, pictures: Tensor, features: Tensor, feature_gradient: Tensor) -> None:
        """Set `.grad` of all parameters, given the gradients at the fully connected layer and at its inputs."""
        convolution, readout = self.network.convolution, self.network.readout
        channels, cells = convolution.out_channels, pictures.shape[1] - 1
        at_hidden, hidden = (rows[:, : channels * cells] for rows in (feature_gradient, features))
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
    """The fully connected layer with its bias as one matrix, its rows in each memory order in use, and its Gram matrices."""

    def __init__(self, network: PredictorNetwork) -> None:
        self.version = _version(network)
        self.matrix = torch.cat([network.readout.weight, network.readout.bias[:, None]], dim=1)
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._width, self._gram = 0, self.matrix.new_zeros(self.matrix.shape[1], self.matrix.shape[1] - 1)
        self._exact_grams: dict[int, Tensor] = {}

    def rows(self, width: int, taps: int) -> Tensor:
        """Return the first `width` rows, in memory order."""
        if (width, taps) not in self._rows:
            self._rows[width, taps] = to_memory_order(self.matrix[:width], taps)
        return self._rows[width, taps]

    def gram(self, width: int) -> Tensor:
        """Return the products of the first `width` rows with themselves, without the bias; later calls must not need fewer."""
        if width > self._width:
            more = self.matrix[self._width : width]
            self._gram = torch.addmm(self._gram, more.T, more[:, :-1])
            self._width = width
        return self._gram

    def square(self, features: Tensor, width: int) -> Tensor:
        """Return |X V'|^2 = <X'X, V'V> for `features` X and the first `width` rows V.

        In double precision, as the product can be far smaller than its factors.
        """
        features = features.double()
        grams = self._exact_grams
        if width not in grams:
            known = max((smaller for smaller in grams if smaller < width), default=0)
            more = self.matrix[known:width].double()
            grams[width] = more.T @ more + grams.get(known, 0)
        return torch.dot((features.T @ features).view(-1), grams[width].view(-1))

    def times(self, grams: Mapping[int, Tensor]) -> Tensor:
        """Return each row of the matrix times the sum of the `grams` whose width includes that row."""
        result = torch.zeros_like(self.matrix)
        widths, total = [0, *sorted(grams)], self.matrix.new_zeros(())
        for low, high in reversed(list(pairwise(widths))):
            total = total + grams[high]
            torch.mm(self.matrix[low:high], total, out=result[low:high])
        return result


def _version(network: PredictorNetwork) -> tuple[int, ...]:
    """Return numbers that change whenever the fully connected layer does (but see `learn`)."""
    weight, bias = network.readout.weight, network.readout.bias
    return weight._version, bias._version, weight.data_ptr(), bias.data_ptr()


def _square(layer: _Layer, features: Tensor, block: RowBlock, result: Tensor) -> Tensor:
    """Return the sum of squares of a block's result: from the result itself, or if it is wide, from Gram matrices.

    Other devices than the CPU read fast, and not all have double precision.
    """
    read = block.width < 16 * features.shape[1] or features.device.type != "cpu"
    return square(result) if read else layer.square(features, block.width).float()


def _add_product(sums: dict[_Key, Tensor], key: _Key, left: Tensor, right: Tensor, share: float) -> None:
    """Add `share` times a matrix product to the sum of `key`."""
    if key in sums:
        sums[key].addmm_(left, right, alpha=share)
    else:
        sums[key] = (left @ right).mul_(share)


def _merged(blocks: Sequence[RowBlock]) -> Iterator[tuple[int, float, slice]]:
    """Yield width, share and rows of neighbouring blocks with the same width and share."""
    for (width, share), group in groupby(blocks, key=lambda block: (block.width, block.share)):
        merged = list(group)
        yield width, share, slice(merged[0].start, merged[-1].stop)


@lru_cache(maxsize=16)
def _taps(grid: int, device: torch.device) -> Tensor:
    """Return the 3x3 convolution as zeros and ones `(9, cells * cells)`: the tap between each input and output cell."""
    cells = grid * grid
    inputs = torch.eye(cells, dtype=torch.float32, device=device).view(cells, 1, grid, grid)
    kernels = torch.eye(9, dtype=torch.float32, device=device).view(9, 1, 3, 3)
    return F.conv2d(inputs, kernels, padding=1).view(cells, 9, cells).transpose(0, 1).reshape(9, -1)
