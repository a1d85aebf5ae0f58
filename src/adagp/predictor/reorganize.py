"""Tensor reorganisation: a layer's output, averaged over the batch, with one sample for each row of its weight.

A **rule** is a plain function `(module, output) -> samples` for one type of layer. `samples` has the shape `(rows, height,
width)`, where `rows` is the first dimension of the layer's weight (its output channels or neurons). The predictor then maps
each sample to one row of the weight's gradient, so that it stays small however large the layer is.

A layer type of your own needs a function and one line::

    register_rule(MyLayer, lambda module, output: output.mean(0)[:, None, None])
"""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.errors import ModelError
from adagp.predictor.means import KeptMean, batch_mean

Rule = Callable[[nn.Module, Tensor], Tensor]


def convolution(module: nn.Module, output: Tensor) -> Tensor:
    """Return `(N, C, ...spatial)` as `(C, height, width)`; one spatial dimension has height 1, of three two are joined."""
    spatial = len(module.kernel_size)  # type: ignore[arg-type]  # every torch convolution has a tuple here
    return _planes(batch_mean(output) if output.dim() == spatial + 2 else output)


def _planes(mean: Tensor) -> Tensor:
    return mean.reshape(mean.shape[0], -1, mean.shape[-1])


def linear(module: nn.Module, output: Tensor) -> Tensor:
    """Return `(N, F)` as `(F, 1, 1)`, a sequence `(N, T, F)` as `(F, 1, T)`, more dimensions as `(F, joined, last)`."""
    return _lines(batch_mean(output) if output.dim() > 1 else output)


def _lines(mean: Tensor) -> Tensor:
    features = mean.shape[-1]
    positions = mean.shape[-2] if mean.dim() > 1 else 1
    return mean.reshape(-1, positions, features).permute(2, 0, 1)


RULES: dict[type[nn.Module], Rule] = {
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.Linear: linear,
}
"""The rule of each layer type. A subclass follows its nearest base class that is named here."""


def register_rule(layer_type: type[nn.Module], rule: Rule) -> None:
    """Make layers of `layer_type` sites, with `rule` as their reorganisation. A type is registered once."""
    if layer_type in RULES:
        raise ModelError(f"there is a rule for {layer_type.__name__} already; a layer type has one rule.")
    RULES[layer_type] = rule


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for `module`, or None where its type and all its base types are unknown."""
    return next((RULES[kind] for kind in type(module).__mro__ if kind in RULES), None)


def kept_mean(rule: Rule, module: nn.Module) -> KeptMean:
    """Return what takes the samples of one layer, time after time, into the same memory; for the two rules above only."""
    views: dict[Rule, Callable[[Tensor], Tensor]] = {convolution: _planes, linear: _lines}
    return KeptMean(views.get(rule), module.weight.shape)  # type: ignore[arg-type]  # a site has a weight


def pool_average(samples: Tensor, grid: int) -> Tensor:
    """Average samples `(rows, height, width)` down (or repeat them up) to `(rows, 1, grid, grid)`.

    Each cell is a sum over the picture with constant weights: one matrix product for all rows, in either memory order.
    """
    if torch.compiler.is_compiling():  # one loop of a compiled model, which would ask where the matrix comes from
        return pool_average_directly(samples, grid)
    rows, height, width = samples.shape
    kind = samples.device.type
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return pool_average(samples, grid)
    cells = _averages(height, width, grid, samples.device)
    return torch.mm(samples.reshape(rows, -1), cells).view(rows, 1, grid, grid)


def pool_maximum(samples: Tensor, grid: int) -> Tensor:
    """Take the maximum of samples `(rows, height, width)` in each cell of `(rows, 1, grid, grid)`."""
    return _pool(samples, grid, F.adaptive_max_pool1d, F.adaptive_max_pool2d)


def pool_average_directly(samples: Tensor, grid: int) -> Tensor:
    """Do what `pool_average` does with torch's own pooling, which is slower outside a compiled model."""
    return _pool(samples, grid, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d)


def _pool(
    samples: Tensor,
    grid: int,
    along_line: Callable[[Tensor, int], Tensor],
    over_plane: Callable[[Tensor, tuple[int, int]], Tensor],
) -> Tensor:
    rows, height, width = samples.shape
    if height * width == 1:
        return samples.repeat(1, grid, grid).unsqueeze(1)  # a copy always: what is kept of an output shares no memory
    if height == 1:  # a sequence fills the grid line by line: grid * grid sections of it instead of grid
        return along_line(samples, grid * grid).view(rows, 1, grid, grid)
    return over_plane(samples.unsqueeze(1), (grid, grid))


@lru_cache(maxsize=256)
def _averages(height: int, width: int, grid: int, device: torch.device) -> Tensor:
    """Return `(height * width, grid * grid)`: the share of each place of a picture in each cell."""
    if height == 1:  # a sequence fills the grid line by line, as above
        return F.adaptive_avg_pool1d(torch.eye(width, device=device), grid * grid)
    down, across = (F.adaptive_avg_pool1d(torch.eye(size, device=device), grid) for size in (height, width))
    return torch.kron(down, across)


def summarize(rule: Rule, module: nn.Module, output: Tensor) -> Tensor:
    """Return the samples of one forward call, detached, in the predictor's single precision, checked against the weight."""
    samples = rule(module, output.detach())
    rows = module.weight.shape[0]  # type: ignore[index]  # a site has a weight
    if samples.dim() != 3 or samples.shape[0] != rows:
        raise ModelError(
            f"the rule for {type(module).__name__} gave samples of shape {tuple(samples.shape)}; "
            f"it must give (rows, height, width) with rows = {rows}, the first dimension of the weight."
        )
    return samples.float()
