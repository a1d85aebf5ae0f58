"""Sites: the layers whose weight gradient can come from somewhere other than backpropagation.

`survey` walks a model once and sorts its parameters: those of sites, and the rest, with the reason. Parameters that belong
to no site (biases, normalisation, embeddings, ...) are trained by backprop in BP batches and frozen in GP batches:
they get no gradient, so neither momentum nor weight decay moves them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from adagp.errors import ModelError, OptionError
from adagp.layers.rules import Rule, rule_for
from adagp.layers.weights import blank, from_shard, is_sharded, local, shard_of, swapped_channels, whole

SAY_SAMPLE_AXIS = (
    "Set the attribute batch_first of the model or of a layer around the site (model.batch_first = True, or False for "
    "sequences first), or exclude the site."
)
"""The remedy in errors about a site for which it is unknown which axis of its output counts the samples."""


@dataclass(frozen=True, eq=False)
class Site:
    """A layer with a weight whose gradient can be predicted. `index` is its position among the model's sites.

    `sequence_first` means that it is inside a layer whose `batch_first` is False: sequences are `(positions, samples, ...)`;
    None if no layer around it has the attribute. `recomputed_by` names the module around it that has `recomputes_layers`:
    it runs its layers again in the backward pass, so that no gradient is seen at their outputs.
    """

    name: str
    index: int
    module: nn.Module
    weight: nn.Parameter
    rule: Rule
    sequence_first: bool | None = None
    recomputed_by: str | None = None

    @cached_property
    def rows(self) -> int:
        """The number of output channels or neurons, which is the number of samples the predictor sees."""
        return self.rule.rows(self.module)

    @cached_property
    def width(self) -> int:
        """The size of one row of the weight's gradient, in numbers."""
        return self.weight.numel() // self.rows

    @cached_property
    def is_sharded(self) -> bool:
        """Whether the weight is sharded over processes (see `adagp.layers.weights`)."""
        return is_sharded(self.weight)

    @cached_property
    def has_whole_rows(self) -> bool:
        """Whether this process has some rows of a sharded weight, and all numbers of these."""
        return self.is_sharded and not self.rule.axis and shard_of(self.weight).axis == 0

    @cached_property
    def local_rows(self) -> slice:
        """The rows whose gradient is produced here: all, or those that this process has of a sharded weight."""
        return shard_of(self.weight).rows if self.has_whole_rows else slice(0, self.rows)

    @cached_property
    def share(self) -> slice:
        """The rows that this process learns from: `local_rows`, or an equal share of all rows if a sharded weight is not cut
        along its rows."""
        if not self.is_sharded or self.has_whole_rows:
            return self.local_rows
        group = shard_of(self.weight).group
        size, rank = (1, 0) if group is None else (group.size(), group.rank())
        return slice(rank * self.rows // size, (rank + 1) * self.rows // size)

    @property
    def like(self) -> Tensor:
        """A tensor in the shape and memory order of `local_rows`, with the outputs first; its values are undefined."""
        return local(self.weight) if self.has_whole_rows else self.outputs_first(blank(self.weight))

    def share_of(self, gradient: Tensor) -> Tensor:
        """Return the rows `share` of a gradient of the weight. If the shards are not rows, the processes exchange them."""
        if self.has_whole_rows:
            return local(gradient)
        rows = self.outputs_first(whole(gradient))
        return rows[self.share] if self.is_sharded else rows

    def outputs_first(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the weight's shape as `(rows, ...)`: itself, if the weight's first axis counts the outputs."""
        return swapped_channels(tensor, self.rule.groups(self.module)) if self.rule.axis else tensor

    def from_outputs_first(self, tensor: Tensor) -> Tensor:
        """Return a tensor `(rows, ...)` in the weight's shape: itself, or a copy in the weight's memory order."""
        if not self.rule.axis:
            return tensor
        result = torch.empty_like(blank(self.weight), dtype=tensor.dtype)
        return result.copy_(swapped_channels(tensor, self.rule.groups(self.module)))

    def from_local_rows(self, tensor: Tensor) -> Tensor:
        """Return the `local_rows` `(rows, ...)` of a gradient as a gradient of the weight, sharded like the weight."""
        return from_shard(tensor, self.weight) if self.has_whole_rows else self.from_outputs_first(tensor)

    def macs(self, inputs: tuple[Any, ...], output: Tensor) -> int:
        """Return the multiply-accumulates of a forward call."""
        if inputs and self.rule.axis and self.rule.kind == "conv":  # a transposed one multiplies each input number
            return int(inputs[0].numel()) * self.weight.shape[1:].numel()
        return output.numel() * self.width


@dataclass(frozen=True)
class Unpredicted:
    """A trainable parameter that belongs to no site, and why."""

    name: str
    parameter: nn.Parameter
    reason: str


@dataclass(frozen=True)
class Survey:
    """All trainable parameters of a model: those of sites, and the rest."""

    sites: tuple[Site, ...]
    rest: tuple[Unpredicted, ...]


_NORMALISATION = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "LocalResponseNorm")


def survey(model: nn.Module, optimized: Iterable[Tensor] | None = None, exclude: Sequence[str] = ()) -> Survey:
    """Sort the trainable parameters of `model` into sites and the rest.

    `optimized` are the optimizer's parameters; a weight that is not among them never moves and is not a site. `exclude` are
    name patterns (`head`, `blocks.0.*`) of layers that must not be sites, nor any layer inside them; a pattern that matches no
    layer is an error.
    """
    _check_initialized(model)
    _check_patterns(model, exclude)
    owners = _owners(model)
    moving = None if optimized is None else {id(parameter) for parameter in optimized}
    sites: list[Site] = []
    rest: list[Unpredicted] = []
    for parameter, owner in owners.items():
        module, path, leaf = owner[0]
        name = _full_name(path, leaf)
        if not parameter.requires_grad:
            continue
        reason = _why_no_site(parameter, owner, model, moving, exclude)
        rule = rule_for(module)
        if reason is None and rule is not None:
            around = _sequence_first(model, path), _recomputed_by(model, path)
            sites.append(Site(path, len(sites), module, parameter, rule, *around))
        else:
            rest.append(Unpredicted(name, parameter, reason or "no rule"))
    return Survey(tuple(sites), tuple(rest))


_Owner = tuple[nn.Module, str, str]


def _owners(model: nn.Module) -> dict[nn.Parameter, list[_Owner]]:
    """Return for each parameter the modules that have it, with their paths and the parameter's name there."""
    owners: dict[nn.Parameter, list[_Owner]] = {}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(parameter, []).append((module, path, leaf))
    return owners


def _why_no_site(
    parameter: nn.Parameter,
    owner: list[_Owner],
    model: nn.Module,
    moving: set[int] | None,
    exclude: Sequence[str],
) -> str | None:
    """Return the first reason why a parameter is not the weight of a site; None if it is one."""
    module, path, leaf = owner[0]
    kind = type(module).__name__
    around = _parent(model, path)
    is_parametrized = leaf.startswith("original") and "parametrizations" in path
    holders = " and ".join(_full_name(where, name) for _, where, name in owner)
    reasons = {
        "not in the optimizer, so it never moves": moving is not None and id(parameter) not in moving,
        "normalisation": any(word in kind for word in _NORMALISATION),
        "bias": leaf == "bias",
        f"shared by {holders}": len(owner) > 1,
        "the layer computes its weight from it (parametrization)": is_parametrized,
        f"no rule for layer type {kind}": rule_for(module) is None,
        f"not the weight of its {kind}": leaf != "weight",
        "used by nn.MultiheadAttention without calling the layer": isinstance(around, nn.MultiheadAttention),
        "excluded": any(fnmatchcase(name, pattern) for name in _names_around(path) for pattern in exclude),
        "not a real floating-point tensor": not parameter.is_floating_point(),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _names_around(path: str) -> list[str]:
    """Return the name of a layer, and those of the layers around it."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _full_name(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


def _parent(model: nn.Module, path: str) -> nn.Module:
    return model.get_submodule(path.rpartition(".")[0])


def _sequence_first(model: nn.Module, path: str) -> bool | None:
    """Return `not batch_first` of the nearest layer around `path` that has it, itself or in its attention; None: no layer."""
    while path:
        path = path.rpartition(".")[0]
        around = model.get_submodule(path)
        for known in (around, getattr(around, "self_attn", None)):
            if isinstance(known, nn.Module) and isinstance(getattr(known, "batch_first", None), bool):
                return not known.batch_first
    return None


def _recomputed_by(model: nn.Module, path: str) -> str | None:
    """Return the name and type of the nearest module around `path` with a true `recomputes_layers`."""
    while path:
        path = path.rpartition(".")[0]
        around = model.get_submodule(path)
        if getattr(around, "recomputes_layers", False) is True:
            return f"'{path}' ({type(around).__name__})" if path else type(around).__name__
    return None


def _check_initialized(model: nn.Module) -> None:
    lazy = [name for name, parameter in model.named_parameters() if isinstance(parameter, UninitializedParameter)]
    if lazy:
        raise ModelError(
            f"parameter '{lazy[0]}' has no shape yet (a lazy layer). Run one forward pass before attaching adagp."
        )


def _check_patterns(model: nn.Module, exclude: Sequence[str]) -> None:
    names = [name for name, _ in model.named_modules() if name]
    for pattern in exclude:
        if not any(fnmatchcase(name, pattern) for name in names):
            listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise OptionError(f"the pattern '{pattern}' matches no layer of the model. Its layers are: {listed}.")
