"""The autograd function against plain autograd, and against products that are converted by hand."""

import pytest
import torch
from torch import Tensor, nn

from adagp.core.block_format import BlockFormat
from adagp.core.precision import parse_precision
from adagp.engine.extensions import ArithmeticFacts
from adagp.layers.sites import survey
from adagp.papers.fast.arithmetic import QuantisedCall
from adagp.papers.fast.precision import TENSORS, Conversion, Width
from adagp.papers.fast.products import ConvolutionProducts, LayerProducts, LinearProducts, converted_product
from adagp.papers.fast.quantise import keyed_noise, quantise


def convolution(stride: int = 1, padding: int = 0, groups: int = 1, transposed: bool = False) -> ConvolutionProducts:
    return ConvolutionProducts([stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups)


CASES: dict[str, tuple[LayerProducts, tuple[int, ...], tuple[int, ...], int]] = {
    "linear": (LinearProducts(), (5, 7), (3, 7), 3),
    "convolution": (convolution(padding=1), (3, 4, 5, 5), (6, 4, 3, 3), 6),
    "strided": (convolution(2, 1), (2, 3, 6, 6), (4, 3, 3, 3), 4),
    "grouped": (convolution(groups=2), (2, 4, 4, 4), (6, 2, 3, 3), 6),
    "depthwise": (convolution(groups=4), (2, 4, 4, 4), (4, 1, 3, 3), 4),
    "transposed": (convolution(2, transposed=True), (2, 4, 3, 3), (4, 3, 2, 2), 3),
    "transposed in groups": (convolution(groups=2, transposed=True), (2, 4, 3, 3), (4, 3, 2, 2), 6),
}


def operands(name: str) -> tuple[LayerProducts, Tensor, Tensor, Tensor]:
    operation, inputs, weight, outputs = CASES[name]
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in (inputs, weight, (outputs,))]
    return operation, tensors[0], tensors[1], tensors[2]


def identity(kind: str, tensor: Tensor, axis: int, parts: int) -> Tensor:
    return tensor


@pytest.mark.parametrize("name", CASES)
def test_gradients_without_conversion_are_those_of_the_function(name: str) -> None:
    operation, *tensors = operands(name)
    torch.autograd.gradcheck(
        lambda inputs, weight, bias: converted_product(inputs, weight, bias, operation, identity), tensors
    )


@pytest.mark.parametrize("name", CASES)
def test_with_24_bits_it_is_plain_autograd_to_a_millionth(name: str) -> None:
    operation, inputs, weight, bias = operands(name)
    widths = dict.fromkeys(TENSORS, Width(24, 24))
    call = QuantisedCall(widths, Conversion(exponent_bits=8), ("key",))
    direction = torch.randn_like(operation.forward(inputs, weight, bias))
    converted = converted_product(inputs, weight, bias, operation, call.convert)
    found = [converted, *torch.autograd.grad(converted, (inputs, weight, bias), direction)]
    plain = operation.forward(inputs, weight, bias)
    expected = [plain, *torch.autograd.grad(plain, (inputs, weight, bias), direction)]
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 1e-6 * other.norm()
    assert call.bits == dict.fromkeys(TENSORS, 24)


def test_each_operand_is_converted_along_the_index_that_is_summed() -> None:
    """A linear layer against three matrix products of matrices that are converted by hand."""
    torch.manual_seed(1)
    inputs, weight = torch.randn(40, 20, requires_grad=True), torch.randn(24, 20, requires_grad=True)
    widths = {"weights": Width(2, 2), "activations": Width(4, 4), "gradients": Width(3, 3)}
    call = QuantisedCall(widths, Conversion(), ("key",))
    output = converted_product(inputs, weight, None, LinearProducts(), call.convert)
    two, four = BlockFormat(mantissa_bits=2), BlockFormat(mantissa_bits=4)
    torch.testing.assert_close(output, quantise(inputs, four, 1) @ quantise(weight, two, 1).t())
    direction = torch.randn(40, 24)
    of_inputs, of_weight = torch.autograd.grad(output, (inputs, weight), direction)
    three = BlockFormat(mantissa_bits=3, rounding="stochastic")
    by_axis = [
        quantise(direction, three, axis, noise=keyed_noise(direction.numel(), "key", "gradients", axis))
        for axis in (0, 1)
    ]
    torch.testing.assert_close(of_inputs, by_axis[1] @ quantise(weight, two, 0))
    torch.testing.assert_close(of_weight, by_axis[0].t() @ quantise(inputs, four, 0))


def test_a_convolution_is_the_sum_over_the_kernel_of_converted_products() -> None:
    """Place by place of the kernel: channels are grouped there, so shifted pictures may be converted once."""
    torch.manual_seed(2)
    inputs, weight = torch.randn(3, 20, 6, 6), torch.randn(5, 20, 3, 3)
    call = QuantisedCall(dict.fromkeys(TENSORS, Width(2, 2)), Conversion(), ("key",))
    output = converted_product(inputs, weight, None, convolution(), call.convert)
    two = BlockFormat(mantissa_bits=2)
    slow = torch.zeros(3, 5, 4, 4)
    for down in range(3):
        for across in range(3):
            patch = inputs[:, :, down : down + 4, across : across + 4].permute(0, 2, 3, 1).reshape(-1, 20)
            # The tensor's window of exponents is the whole tensor's: 16 exponents hold these numbers.
            rows = quantise(patch, two, 1) @ quantise(weight[:, :, down, across], two, 1).t()
            slow += rows.view(3, 4, 4, 5).permute(0, 3, 1, 2)
    torch.testing.assert_close(output, slow)


def test_only_what_is_needed_is_computed() -> None:
    seen: list[tuple[str, int]] = []

    def convert(kind: str, tensor: Tensor, axis: int, parts: int) -> Tensor:
        seen.append((kind, axis))
        return tensor

    inputs, weight = torch.randn(4, 3), nn.Parameter(torch.randn(2, 3))
    converted_product(inputs, weight, None, LinearProducts(), convert).sum().backward()
    assert seen == [("activations", 1), ("weights", 1), ("gradients", 0), ("activations", 0)]
    seen.clear()
    given = torch.randn(4, 3, requires_grad=True)
    converted_product(given, weight.detach(), None, LinearProducts(), convert).sum().backward()
    assert seen == [("activations", 1), ("weights", 1), ("gradients", 1), ("weights", 0)]


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 3), (4, 5)),
    "a sequence": (nn.Linear(5, 3, bias=False), (4, 2, 5)),
    "one row": (nn.Linear(5, 3), (5,)),
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1), (2, 3, 7)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2, bias=False), (2, 4, 9, 9)),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "one picture": (nn.Conv2d(3, 2, 3), (3, 5, 5)),
    "same, even kernel": (nn.Conv2d(3, 2, (2, 4), padding="same"), (2, 3, 5, 6)),
    "valid": (nn.Conv2d(3, 2, 2, padding="valid"), (2, 3, 5, 6)),
    "reflected": (nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"), (2, 3, 5, 6)),
    "transposed 1d": (nn.ConvTranspose1d(3, 2, 3, stride=2), (2, 3, 5)),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 5, 5)),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2), (2, 2, 3, 3, 3)),
}


class Conv1D(nn.Module):
    """GPT-2's linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias, inputs, self.weight)


@pytest.mark.filterwarnings("ignore:Using padding=:UserWarning")  # torch's own, of even kernels
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_torch(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    inputs = torch.randn(shape, requires_grad=True)
    arithmetic = parse_precision("bfp24:e=8").arithmetic(ArithmeticFacts(survey(layer).sites, 1), lambda: True)
    plain = layer(inputs)
    expected = [plain, *torch.autograd.grad(plain.square().sum(), [inputs, *layer.parameters()])]
    with arithmetic.batch(0):
        output = layer(inputs)
        found = [output, *torch.autograd.grad(output.square().sum(), [inputs, *layer.parameters()])]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert arithmetic.read_metrics()[""]["mantissa_gradients"] == 24, "its product was seen"


def test_a_weight_with_its_inputs_first() -> None:
    from adagp.layers.rules import Rule, linear
    from adagp.layers.sites import Site

    torch.manual_seed(0)
    layer, inputs = Conv1D(), torch.randn(4, 5)
    site = Site("it", 0, layer, layer.weight, Rule(linear, 1, "linear"))
    arithmetic = parse_precision("bfp24:e=8").arithmetic(ArithmeticFacts([site], 1), lambda: True)
    plain = torch.autograd.grad(layer(inputs).square().sum(), list(layer.parameters()))
    with arithmetic.batch(0):
        found = torch.autograd.grad(layer(inputs).square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    assert arithmetic.read_metrics()["it"]["mantissa_weights"] == 24


def test_other_products_pass() -> None:
    layer = nn.Linear(4, 4)
    arithmetic = parse_precision("bfp2").arithmetic(ArithmeticFacts(survey(layer).sites, 1), lambda: True)
    inputs = torch.randn(3, 4)
    with arithmetic.batch(0):
        assert torch.equal(torch.addmm(torch.zeros(4), inputs, layer.weight.t()), inputs @ layer.weight.t())
    assert arithmetic.read_metrics() == {}
