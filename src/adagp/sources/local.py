"""The weight gradient of a single layer, computed from its input and the gradient at its output, without other layers."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from adagp.errors import AdagpWarning, ModelError
from adagp.layers.rules import computes_as_built_in
from adagp.layers.sites import Site
from adagp.layers.weights import blank
from adagp.sources.base import RunningNorms, Source
from adagp.sources.demand import TrialCall


def check_layer_types(source: str, sites: Sequence[Site]) -> None:
    """Raise on sites whose weight gradient cannot be computed locally: layer types that override their forward pass."""
    for site in sites:
        kind = type(site.module)
        if not computes_as_built_in(kind):
            raise ModelError(
                f"source '{source}' takes the weight gradient of convolutions, transposed convolutions and linear layers; "
                f"site '{site.name}' is a {kind.__name__} with a forward of its own. Exclude it (exclude=['{site.name}'])."
            )


def check_not_recomputed(source: str, sites: Sequence[Site]) -> None:
    """Raise on sites of a module with `recomputes_layers`: no gradient will be seen at their outputs."""
    for site in sites:
        if site.recomputed_by is not None:
            raise ModelError(
                f"source '{source}' needs the gradients at the outputs of layers, which {site.recomputed_by} does not have: it "
                "computes its layers again in the backward pass. Let it store the activations (recompute=False, on the "
                "command line --no-recompute), train by bp or adagp, or exclude its layers."
            )


def recomputed(site: Site) -> ModelError:
    """Return the error for a site that reentrant checkpointing, or a reversible chain, computes again in the backward pass."""
    return ModelError(
        f"site '{site.name}' has a gradient, but none was seen at its output: it is computed again in the backward "
        "pass. With activation checkpointing, give checkpoint(..., use_reentrant=False); a reversible chain always does so: "
        "train it by backprop (method bp), or exclude the site."
    )


@dataclass(frozen=True)
class Geometry:
    """A convolution's parameters, one number per spatial dimension, for an input that `padded` has returned."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool


def batched(site: Site, tensor: Tensor) -> Tensor:
    """Return a layer's input or output with a batch axis: `(N, C, ...)`, or `(rows, features)` of a linear layer."""
    if site.rule.kind == "linear":
        return tensor.reshape(-1, tensor.shape[-1])
    return tensor if tensor.dim() == site.weight.dim() else tensor[None]


def padded(module: Any, inputs: Tensor) -> tuple[Tensor, Geometry]:
    """Return a convolution's input and geometry. Padding other than explicit zeros is applied to the input in advance."""
    padding = module.padding
    if module.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = F.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * len(module.kernel_size)
    return inputs, Geometry(module.stride, padding, module.dilation, module.groups, module.transposed)


@torch.no_grad()
def weight_gradient(site: Site, inputs: Tensor, output_gradient: Tensor, *, local_only: bool = False) -> Tensor:
    """Return the gradient of `site`'s weight, and nothing else, given its input and the loss's gradient at its output.

    With `local_only` only this process's rows of a sharded weight are computed; the layer must allow that (`gives_rows`).
    """
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return weight_gradient(site, inputs, output_gradient, local_only=local_only)
    weight = blank(site.weight)
    inputs, output_gradient = (batched(site, tensor.to(weight.dtype)) for tensor in (inputs.detach(), output_gradient))
    if local_only:
        weight, output_gradient = weight[site.local_rows], output_gradient[:, site.local_rows].contiguous()
        if not len(weight):
            return weight
    if site.rule.kind == "linear":
        return inputs.T @ output_gradient if site.rule.axis else output_gradient.T @ inputs
    inputs, geometry = padded(site.module, inputs)
    _, gradient, _ = torch.ops.aten.convolution_backward(
        output_gradient,
        inputs,
        weight.detach(),
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        _output_padding(geometry, inputs.shape, output_gradient.shape, weight.shape),
        geometry.groups,
        [False, True, False],  # the weight's gradient alone
    )
    return gradient  # type: ignore[no-any-return]


def gives_rows(site: Site) -> bool:
    """Return whether the gradient of this process's rows of a sharded weight can be computed without the other rows."""
    return site.has_whole_rows and getattr(site.module, "groups", 1) == 1


def _output_padding(geometry: Geometry, inputs: Size, outputs: Size, weight: Size) -> list[int]:
    """Return by how much a transposed convolution's output is longer than its shortest possible one, by dimension.

    A call of the layer may choose it (`output_size`). For other convolutions it is 0.
    """
    sizes = zip(inputs[2:], outputs[2:], weight[2:], geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return [
        output - ((size - 1) * stride - 2 * padding + (taps - 1) * dilation + 1) if geometry.transposed else 0
        for size, output, taps, stride, padding, dilation in sizes
    ]


class LocalSource(Source):
    """A source that adds up local weight gradients over forward calls. Layers without such a gradient are an error."""

    local = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums: dict[Site, Tensor] = {}
        self._warned_of: set[Site] = set()

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Raise on layers whose gradient cannot be computed locally, and on recomputed ones, which show no output gradient."""
        check_layer_types(self._name, sites)
        check_not_recomputed(self._name, sites)

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:
        """Raise if the layer's gradient cannot be computed locally, or if the layer is recomputed in the backward pass."""
        check_layer_types(self._name, [call.site])
        check_not_recomputed(self._name, [call.site])

    def add(self, site: Site, gradient: Tensor) -> None:
        """Add the weight gradient of one forward call."""
        self._sums[site] = self._sums[site] + gradient if site in self._sums else gradient

    def check_gradients_seen(self, sites: Sequence[Site], watched: Mapping[Site, bool], seen: Collection[Site]) -> None:
        """Check that a gradient was `seen` at the output of each watched one of `sites`, which all have a true weight gradient.

        `watched` has whether autograd was on in the site's call. A layer that reentrant checkpointing runs again is an error,
        and so is a batch without any gradient at an output. For a single layer there is one warning, as it may not matter for
        the loss.
        """
        unseen = [site for site in sites if site in watched and site not in seen]
        for site in unseen:
            if not watched[site]:
                raise recomputed(site)
        if unseen and not seen:
            raise ModelError(
                f"source '{self._name}' saw no gradient at the output of any layer, but '{unseen[0].name}' has a true weight "
                "gradient. Was a part of the model compiled and called before adagp.attach?"
            )
        self._warn_of(unseen)

    def _warn_of(self, unseen: Sequence[Site]) -> None:
        """Warn about the first new site in `unseen`: it has a true weight gradient, but no gradient at its output."""
        new = [site for site in unseen if site not in self._warned_of]
        if new:
            self._warned_of.update(new)
            warnings.warn(
                f"site '{new[0].name}' has a weight gradient, but none at its output: the loss uses the weight without the "
                f"layer. Source '{self._name}' cannot predict it; exclude it (exclude=['{new[0].name}']).",
                AdagpWarning,
                stacklevel=3,
            )

    def _sums_of(self, sites: Sequence[Site]) -> list[Tensor]:
        return [self._sums[site] for site in sites if site in self._sums]

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the gradients of the sites that were called."""
        return [self._sums.get(site) for site in sites]

    def forget(self) -> None:
        """Drop the gradients of this batch."""
        self._sums.clear()


class Kept:
    """A layer's input, kept without a copy until it is used; an error if it was changed in place in the meantime."""

    def __init__(self, site: Site, inputs: tuple[Any, ...]) -> None:
        self._site = site
        self._tensor: Tensor = inputs[0].detach()
        self._version = self._tensor._version

    def get(self) -> Tensor:
        """Return the input as the layer saw it."""
        if self._tensor._version != self._version:
            raise ModelError(
                f"the input of site '{self._site.name}' was changed in place after the layer had used it, so its weight "
                "gradient cannot be taken locally. Make that operation not in place, or exclude the site."
            )
        return self._tensor
