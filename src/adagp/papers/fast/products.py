"""The three products of a layer with converted operands, as one autograd function.

Each operand is converted along the index over which its product sums, from the same floats:

    forward           output         = inputs (over input channels)    x weights (over input channels)
    input gradient    input's        = gradients (output channels)     x weights (output channels)
    weight gradient   weight's       = gradients (over samples)        x inputs (over samples)

A convolution's sum runs over channels and the kernel, its weight gradient's over samples and places. Groups lie along the
channels at each place of the kernel, and along the samples at each place of the picture: so groups of both factors fit together
for every kernel, stride and padding, and torch's own convolutions of the converted tensors have the wanted sums but for the
order of additions in float. (How FAST groups convolutions is not specified in the text that was available; this is adagp's
choice.)

Sums leave the products as floats. The bias and its gradient are not products, and stay as they are.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Convert = Callable[[str, Tensor, int, int], Tensor]
"""Converts a tensor of a kind (see `schedules.precision.TENSORS`) along an axis, cut into parts that share no group."""


class LayerProducts(Protocol):
    """A layer's arithmetic, and where its operands have their channels."""

    @property
    def groups(self) -> int:
        """Parts of the channels that are not summed together."""

    @property
    def weight_inputs(self) -> tuple[int, int]:
        """The weight's axis of input channels, and its parts."""

    @property
    def weight_outputs(self) -> tuple[int, int]:
        """The weight's axis of output channels, and its parts."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output."""

    def input_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of `inputs`; only their shape is used."""

    def weight_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of `weight`; only its shape is used."""


@dataclass(frozen=True)
class LinearProducts:
    """Rows of inputs times a weight `(outputs, inputs)`."""

    groups: int = 1
    weight_inputs: tuple[int, int] = (1, 1)
    weight_outputs: tuple[int, int] = (0, 1)

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `(rows, outputs)`."""
        return inputs @ weight.t() if bias is None else torch.addmm(bias, inputs, weight.t())

    def input_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return `(rows, inputs)`."""
        return gradient @ weight

    def weight_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return `(outputs, inputs)`."""
        return gradient.t() @ inputs


@dataclass(frozen=True)
class ConvolutionProducts:
    """A convolution of any dimensions, or a transposed one, as torch's `convolution` takes it."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    @property
    def weight_inputs(self) -> tuple[int, int]:
        """Axis 1, whose channels are those of one group; a transposed weight has them first, group after group."""
        return (0, self.groups) if self.transposed else (1, 1)

    @property
    def weight_outputs(self) -> tuple[int, int]:
        """Axis 0, group after group; a transposed weight has those of one group on axis 1."""
        return (1, 1) if self.transposed else (0, self.groups)

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `(samples, outputs, ...)`."""
        result: Tensor = torch.ops.aten.convolution(inputs, weight, bias, *self._rest)
        return result

    def input_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor in the shape of `inputs`."""
        result: Tensor = self._backward(gradient, inputs, weight, 0)
        return result

    def weight_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor in the shape of `weight`."""
        result: Tensor = self._backward(gradient, inputs, weight, 1)
        return result

    @property
    def _rest(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups

    def _backward(self, gradient: Tensor, inputs: Tensor, weight: Tensor, which: int) -> Any:
        mask = [index == which for index in range(3)]
        return torch.ops.aten.convolution_backward(gradient, inputs, weight, None, *self._rest, mask)[which]


class ConvertedProduct(torch.autograd.Function):
    """`operation` on inputs (samples first, channels second), weight and bias, with every operand converted by `convert`."""

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, operation: LayerProducts, convert: Convert
    ) -> Tensor:
        """Return the output, made of converted inputs and weight."""
        context.save_for_backward(inputs, weight)
        context.operation, context.convert = operation, convert
        return operation.forward(
            convert("activations", inputs, 1, operation.groups),
            convert("weights", weight, *operation.weight_inputs),
            bias,
        )

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs, weight and bias, as far as they are needed."""
        inputs, weight = context.saved_tensors
        operation, convert = context.operation, context.convert
        of_inputs = of_weight = of_bias = None
        with torch._C.DisableTorchFunction():  # an active mode must not intercept these calls
            if context.needs_input_grad[0]:
                along_outputs = convert("gradients", gradient, 1, operation.groups)
                converted = convert("weights", weight, *operation.weight_outputs)
                of_inputs = operation.input_gradient(along_outputs, inputs, converted)
            if context.needs_input_grad[1]:
                along_samples = convert("gradients", gradient, 0, 1)
                converted = convert("activations", inputs, 0, 1)
                of_weight = operation.weight_gradient(along_samples, converted, weight)
            if context.needs_input_grad[2]:
                of_bias = gradient.sum([dim for dim in range(gradient.dim()) if dim != 1])
        return of_inputs, of_weight, of_bias, None, None


def converted_product(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, operation: LayerProducts, convert: Convert
) -> Tensor:
    """Return the output of a layer with converted operands; its gradients will be made of converted operands, too."""
    result: Tensor = ConvertedProduct.apply(inputs, weight, bias, operation, convert)  # type: ignore[no-untyped-call]
    return result


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
    arguments = dict(zip(names, args, strict=False)) | kwargs
    weight = arguments.get("weight", arguments.get("mat2"))
    if not isinstance(weight, Tensor) or id(weight) not in weights or len(args) > len(names):
        return None
    return read(arguments, weight)


def _linear(arguments: dict[str, Any], weight: Tensor) -> ProductCall:
    inputs = arguments["input"]
    rows = inputs.reshape(-1, inputs.shape[-1])
    shape = (*inputs.shape[:-1], weight.shape[0])
    return ProductCall(
        id(weight), rows, weight, arguments.get("bias"), LinearProducts(), lambda result: result.view(shape)
    )


def _addmm(arguments: dict[str, Any], weight: Tensor) -> ProductCall | None:
    """Read a product by a weight `(inputs, outputs)` plus a bias vector, as in GPT-2; None for any other sum."""
    if arguments.get("beta", 1) != 1 or arguments.get("alpha", 1) != 1 or arguments["input"].dim() != 1:
        return None
    return ProductCall(
        id(weight), arguments["mat1"], weight.t(), arguments["input"], LinearProducts(), lambda result: result
    )


def _convolution(dimensions: int, transposed: bool) -> Callable[[dict[str, Any], Tensor], ProductCall]:
    def read(arguments: dict[str, Any], weight: Tensor) -> ProductCall:
        def each(name: str, usual: int) -> list[int]:
            value = arguments.get(name, usual)
            return [value] * dimensions if isinstance(value, int) else list(value)

        inputs, dilation = arguments["input"], each("dilation", 1)
        alone = inputs.dim() == dimensions + 1
        inputs = inputs.unsqueeze(0) if alone else inputs
        if arguments.get("padding") == "same":
            inputs, padding = _same(inputs, weight, dilation)
        else:
            padding = [0] * dimensions if arguments.get("padding") == "valid" else each("padding", 0)
        operation = ConvolutionProducts(
            each("stride", 1), padding, dilation, transposed, each("output_padding", 0), int(arguments.get("groups", 1))
        )
        finish = (lambda result: result.squeeze(0)) if alone else (lambda result: result)
        return ProductCall(id(weight), inputs, weight, arguments.get("bias"), operation, finish)

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
