"""The weight gradient of a single layer, from its input and the gradient at its output: no chain through other layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.errors import ModelError
from adagp.sites import Site
from adagp.sources.base import Source
from adagp.sources.support.norms import RunningNorms


def _computation(kind: type[nn.Module]) -> tuple[Any, Any]:
    """Return the functions that say how a layer type computes."""
    return kind.forward, getattr(kind, "_conv_forward", None)


_PLAIN = {_computation(kind) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)}


def refuse_unknown_layers(source: str, sites: Sequence[Site]) -> None:
    """Refuse sites whose weight gradient cannot be taken locally: layers that compute in a way of their own."""
    for site in sites:
        kind = type(site.module)
        if _computation(kind) not in _PLAIN:
            raise ModelError(
                f"source '{source}' takes the weight gradient of Conv1d, Conv2d, Conv3d and Linear layers; "
                f"site '{site.name}' is a {kind.__name__} with a forward of its own. Exclude it (exclude=['{site.name}'])."
            )


@dataclass(frozen=True)
class Geometry:
    """A convolution's steps, one number a spatial dimension, for an input that was padded where zeros do not do it."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def batched(module: nn.Module, tensor: Tensor) -> Tensor:
    """Return a layer's input or output with a batch axis: `(N, C, ...)` for convolutions, `(rows, features)` for Linear."""
    if isinstance(module, nn.Linear):
        return tensor.reshape(-1, tensor.shape[-1])
    spatial = len(module.kernel_size)  # type: ignore[arg-type]  # every torch convolution has a tuple here
    return tensor if tensor.dim() == spatial + 2 else tensor[None]


def padded(module: Any, inputs: Tensor) -> tuple[Tensor, Geometry]:
    """Return a convolution's input, padded beforehand where its padding is not simply zeros, and the geometry that is left."""
    padding = module.padding
    if module.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = F.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * len(module.kernel_size)
    return inputs, Geometry(module.stride, padding, module.dilation, module.groups)


@torch.no_grad()
def weight_gradient(site: Site, inputs: Tensor, output_gradient: Tensor) -> Tensor:
    """Return the gradient of `site`'s weight, and nothing else, given its input and the loss's gradient at its output."""
    module, weight = site.module, site.weight
    inputs, output_gradient = inputs.detach().to(weight.dtype), output_gradient.to(weight.dtype)
    if isinstance(module, nn.Linear):
        return batched(module, output_gradient).T @ batched(module, inputs)
    inputs, geometry = padded(module, batched(module, inputs))
    none = [0] * len(geometry.stride)
    _, gradient, _ = torch.ops.aten.convolution_backward(
        batched(module, output_gradient),
        inputs,
        weight.detach(),
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,  # not transposed
        none,
        geometry.groups,
        [False, True, False],  # the weight's gradient alone
    )
    return gradient  # type: ignore[no-any-return]


class LocalSource(Source):
    """A source that adds up local weight gradients, forward call by forward call. Layers it cannot do this for are refused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums: dict[Site, Tensor] = {}

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Refuse layers whose gradient cannot be taken locally."""
        refuse_unknown_layers(self._name, sites)

    def add(self, site: Site, gradient: Tensor) -> None:
        """Add the weight gradient of one forward call."""
        self._sums[site] = self._sums[site] + gradient if site in self._sums else gradient

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the gradients of the sites that were called."""
        return [self._sums.get(site) for site in sites]

    def forget(self) -> None:
        """Drop the gradients of this batch."""
        self._sums.clear()


class Kept:
    """A layer's input, kept without a copy until it is used; refused if it was changed in place in the meantime."""

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
