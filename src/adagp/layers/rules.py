"""Tensor reorganisation: a layer's output, averaged over the batch, with one sample for each row of its weight.

A **rule** defines for one type of layer how its output becomes samples, and which axis of its weight is the output axis.
`samples` is a plain function `(module, output) -> samples` of the shape `(rows, height, width)`, where `rows` are the layer's
output channels or neurons. The predictor then maps each sample to one row of the weight's gradient: the part that belongs to
this output. So the predictor stays small, however large the layer is.

For your own layer type, register a function::

    register_rule(MyLayer, lambda module, output: output.mean(0)[:, None, None])
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from adagp.errors import ModelError, OptionError
from adagp.layers.summaries import KeptMean, batch_mean

Samples = Callable[[nn.Module, Tensor], Tensor]
Kind = Literal["conv", "linear", "other"]


@dataclass(frozen=True)
class Rule:
    """How a layer's output becomes samples, and which axis of its weight counts the outputs.

    With `axis` 0 the weight is `(outputs, ...)`, with 1 `(inputs, outputs, ...)`. With axis 1 and an attribute `groups`, as in
    transposed convolutions, it is `(inputs, outputs per group, ...)`, with the inputs of one group after the other. Schedules
    count layers by their `kind`.
    """

    samples: Samples
    axis: int = 0
    kind: Kind = "other"

    def __post_init__(self) -> None:
        if self.axis not in (0, 1):
            raise OptionError(f"the output axis of a weight is {self.axis}; it must be 0 or 1.")

    def groups(self, module: nn.Module) -> int:
        """Return the number of groups of inputs on axis 0 of the weight, if its outputs are on axis 1; else 1."""
        return int(getattr(module, "groups", 1)) if self.axis else 1

    def rows(self, module: nn.Module) -> int:
        """Return the number of outputs of `module`, which is the number of samples the predictor sees."""
        weight: Tensor = module.weight  # type: ignore[assignment]  # a site has a weight
        return weight.shape[self.axis] * self.groups(module)


def convolution(module: nn.Module, output: Tensor) -> Tensor:
    """Return the batch mean of `(N, C, ...spatial)` as `(C, height, width)`.

    With one spatial dimension the height is 1; with three the first two are joined.
    """
    spatial = len(module.kernel_size)  # type: ignore[arg-type]  # every torch convolution has a tuple here
    return _planes(batch_mean(output) if output.dim() == spatial + 2 else output)


def _planes(mean: Tensor) -> Tensor:
    return mean.reshape(mean.shape[0], -1, mean.shape[-1])


def linear(module: nn.Module, output: Tensor) -> Tensor:
    """Return the batch mean: of `(N, F)` as `(F, 1, 1)`, of sequences `(N, T, F)` as `(F, 1, T)`, of more dimensions as
    `(F, all but the last joined, last)`."""
    return _lines(batch_mean(output) if output.dim() > 1 else output)


def _lines(mean: Tensor) -> Tensor:
    features = mean.shape[-1]
    positions = mean.shape[-2] if mean.dim() > 1 else 1
    return mean.reshape(-1, positions, features).permute(2, 0, 1)


_CONVOLUTION, _TRANSPOSED = (Rule(convolution, axis, "conv") for axis in (0, 1))
RULES: dict[type[nn.Module] | str, Rule] = {
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.Linear: Rule(linear, 0, "linear"),
    "timm.layers.linear.Linear": Rule(linear, 0, "linear"),  # torch's own, but for scripted models
    "transformers.pytorch_utils.Conv1D": Rule(linear, 1, "linear"),  # GPT-2's linear layers
}
"""The rule of each layer type; types of libraries that may be missing are given by their full name. A subclass has the rule of
its nearest base class in this table."""
_BUILT_IN = frozenset(RULES)


def register_rule(layer_type: type[nn.Module], rule: Samples, axis: int | None = None) -> None:
    """Make layers of `layer_type` sites, with the function `rule` as their reorganisation. A type can be registered once.

    `axis` is the axis of the weight that counts the outputs, 0 or 1 (see `Rule`); None: as in the nearest base class that has a
    rule, or 0. The kind is also that of this base class.
    """
    if _key(layer_type) in RULES:
        raise ModelError(f"there is a rule for {layer_type.__name__} already; a layer type has one rule.")
    base = _rule_of(layer_type) or Rule(rule)
    RULES[layer_type] = Rule(rule, base.axis if axis is None else axis, base.kind)


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for `module`, or None if its type and all its base types are unknown."""
    return _rule_of(type(module))


def computes_as_built_in(layer_type: type[nn.Module]) -> bool:
    """Return whether a layer type computes like a built-in one; a subclass may override the computation."""
    base = next((base_type for base_type in layer_type.__mro__ if _key(base_type) in _BUILT_IN), nn.Module)
    same = [getattr(layer_type, name, None) is getattr(base, name, None) for name in ("forward", "_conv_forward")]
    return base is not nn.Module and all(same)


def _rule_of(layer_type: type[nn.Module]) -> Rule | None:
    return next((RULES[_key(base)] for base in layer_type.__mro__ if _key(base) in RULES), None)


def _key(layer_type: type) -> type[nn.Module] | str:
    name = f"{layer_type.__module__}.{layer_type.__qualname__}"
    return name if name in RULES else layer_type


def kept_mean(rule: Rule, module: nn.Module) -> KeptMean:
    """Return a `KeptMean` for the samples of one layer; it takes none unless the rule is `convolution` or `linear`."""
    views: dict[Samples, Callable[[Tensor], Tensor]] = {convolution: _planes, linear: _lines}
    return KeptMean(views.get(rule.samples), rule.rows(module), module.weight.dim())  # type: ignore[operator]  # as above


def summarize(rule: Rule, module: nn.Module, output: Tensor) -> Tensor:
    """Return the samples of one forward call, detached, in the predictor's single precision, checked against the weight."""
    samples, rows = rule.samples(module, output.detach()), rule.rows(module)
    if samples.dim() != 3 or samples.shape[0] != rows:
        raise ModelError(
            f"the rule for {type(module).__name__} returned samples of shape {tuple(samples.shape)}; "
            f"it must return (rows, height, width) with rows = {rows}, the outputs that axis {rule.axis} of its weight counts."
        )
    return samples.float()
