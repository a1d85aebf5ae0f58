"""All products by a site's weight that torch's layers make are seen, and give the layer's own output."""

import pytest
import torch
from torch import Tensor, nn

from adagp.core.precision import parse_precision
from adagp.engine.arithmetic import ArithmeticFacts
from adagp.layers.sites import survey

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
