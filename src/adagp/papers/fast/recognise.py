"""Which calls of torch's functions are products with a site's weight, and what they multiply."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adagp.papers.fast.product import ConvolutionProducts, LayerProducts, LinearProducts


@dataclass(frozen=True)
class ProductCall:
    """A product by the weight known as `key`: operands as `ConvertedProduct` takes them, and what to do with its result."""

    key: int
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    operation: LayerProducts
    finish: Callable[[Tensor], Tensor]


def recognise(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], weights: Container[int]
) -> ProductCall | None:
    """Return the product that a call makes with one of `weights` (by their `id`); None if it is no such product."""
    known = _KNOWN.get(function)
    if known is None:
        return None
    names, read = known
    given = dict(zip(names, args, strict=False)) | kwargs
    weight = given.get("weight", given.get("mat2"))
    if not isinstance(weight, Tensor) or id(weight) not in weights or len(args) > len(names):
        return None
    return read(given, weight)


def _linear(given: dict[str, Any], weight: Tensor) -> ProductCall:
    inputs = given["input"]
    rows = inputs.reshape(-1, inputs.shape[-1])
    shape = (*inputs.shape[:-1], weight.shape[0])
    return ProductCall(id(weight), rows, weight, given.get("bias"), LinearProducts(), lambda result: result.view(shape))


def _addmm(given: dict[str, Any], weight: Tensor) -> ProductCall | None:
    """A sum and a product by a weight `(inputs, outputs)`, as in GPT-2; none where the two are weighted."""
    if given.get("beta", 1) != 1 or given.get("alpha", 1) != 1 or given["input"].dim() != 1:
        return None
    return ProductCall(id(weight), given["mat1"], weight.t(), given["input"], LinearProducts(), lambda result: result)


def _convolution(dimensions: int, transposed: bool) -> Callable[[dict[str, Any], Tensor], ProductCall]:
    def read(given: dict[str, Any], weight: Tensor) -> ProductCall:
        def each(name: str, usual: int) -> list[int]:
            value = given.get(name, usual)
            return [value] * dimensions if isinstance(value, int) else list(value)

        inputs, dilation = given["input"], each("dilation", 1)
        alone = inputs.dim() == dimensions + 1
        inputs = inputs.unsqueeze(0) if alone else inputs
        if given.get("padding") == "same":
            inputs, padding = _same(inputs, weight, dilation)
        else:
            padding = [0] * dimensions if given.get("padding") == "valid" else each("padding", 0)
        operation = ConvolutionProducts(
            each("stride", 1), padding, dilation, transposed, each("output_padding", 0), int(given.get("groups", 1))
        )
        finish = (lambda result: result.squeeze(0)) if alone else (lambda result: result)
        return ProductCall(id(weight), inputs, weight, given.get("bias"), operation, finish)

    return read


def _same(inputs: Tensor, weight: Tensor, dilation: list[int]) -> tuple[Tensor, list[int]]:
    """Return inputs and padding with which a convolution's output is as large as its input; torch too pads more at the end."""
    total = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    more = [width % 2 for width in total]
    if any(more):
        inputs = F.pad(inputs, [side for extra in reversed(more) for side in (0, extra)])
    return inputs, [width // 2 for width in total]


_FORWARD = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_BACK = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_KNOWN: dict[Any, tuple[tuple[str, ...], Callable[[dict[str, Any], Tensor], ProductCall | None]]] = {
    F.linear: (("input", "weight", "bias"), _linear),
    torch.addmm: (("input", "mat1", "mat2"), _addmm),
    F.conv1d: (_FORWARD, _convolution(1, False)),
    F.conv2d: (_FORWARD, _convolution(2, False)),
    F.conv3d: (_FORWARD, _convolution(3, False)),
    F.conv_transpose1d: (_BACK, _convolution(1, True)),
    F.conv_transpose2d: (_BACK, _convolution(2, True)),
    F.conv_transpose3d: (_BACK, _convolution(3, True)),
}
"""Functions by the names of their arguments, and how a call of them is read."""
