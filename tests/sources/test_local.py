"""Local weight gradients against autograd, over drawn shapes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transposed import Conv1D, output_last
from torch import Tensor, nn

from adagp.errors import ModelError
from adagp.layers.rules import RULES, register_rule
from adagp.layers.sites import survey
from adagp.sources.local import Kept, check_layer_types, weight_gradient

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Draw a convolution of one to three dimensions, or a linear layer, and an input that fits it."""
    torch.manual_seed(draw(st.integers(0, 99)))
    if draw(st.integers(0, 3)) == 0:
        shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        return nn.Linear(3, 4).double(), torch.randn(*shape, 3, dtype=torch.double)
    spatial, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    stride = draw(st.integers(1, 3))
    padding: Any = draw(st.sampled_from([0, 1, "same"] if stride == 1 else [0, 1]))
    mode = draw(st.sampled_from(["zeros", "circular"]))
    make: Any = CONVOLUTIONS[spatial]
    layer = make(4, 6, kernel, stride, padding, dilation, groups, padding_mode=mode).double()
    return layer, torch.randn(draw(st.integers(1, 3)), 4, *[draw(st.integers(5, 7))] * spatial, dtype=torch.double)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=120)
@given(st.one_of(layers(), output_last()))
def test_equals_autograd(case: tuple[nn.Module, Tensor]) -> None:
    layer, inputs = case
    (site,) = survey(layer).sites
    output = layer(inputs)
    gradient = torch.randn_like(output)
    output.backward(gradient)
    assert site.weight.grad is not None
    torch.testing.assert_close(weight_gradient(site, inputs, gradient), site.weight.grad)


@pytest.mark.parametrize("layer", [nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(2, 3, 3)])
def test_a_single_sample_needs_no_batch_axis(layer: nn.Module) -> None:
    inputs = torch.randn(2, 6, 6)
    (site,) = survey(layer).sites
    output = layer(inputs)
    output.backward(torch.ones_like(output))
    assert site.weight.grad is not None
    torch.testing.assert_close(weight_gradient(site, inputs, torch.ones_like(output)), site.weight.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_call_may_ask_for_a_size_of_the_output(dtype: torch.dtype) -> None:
    """Of a transposed convolution, to which several inputs of an ordinary one correspond."""
    layer, inputs = nn.ConvTranspose2d(2, 3, 3, stride=3, padding=1).to(dtype), torch.randn(4, 2, 5, 5, dtype=dtype)
    (site,) = survey(layer).sites
    output = layer(inputs, output_size=(15, 14))
    assert output.shape[2:] == (15, 14)
    gradient = torch.randn_like(output)
    output.backward(gradient)
    assert site.weight.grad is not None
    torch.testing.assert_close(weight_gradient(site, inputs, gradient), site.weight.grad)


def test_layers_with_a_forward_of_their_own_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Standardised(nn.Conv2d):
        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self._conv_forward(inputs, self.weight - self.weight.mean(), self.bias)
            return output

    class Renamed(nn.Conv2d):
        """The same computation under another name."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

    monkeypatch.setattr("adagp.layers.rules.RULES", dict(RULES))
    register_rule(Odd, lambda module, output: output)
    known = nn.Sequential(Renamed(1, 1, 1), nn.Linear(1, 1), nn.ConvTranspose2d(1, 1, 1), Conv1D(1, 1))
    assert len(survey(known).sites) == 4
    check_layer_types("topk", survey(known).sites)
    for layer in (Standardised(1, 1, 1), Odd()):
        kind = type(layer).__name__
        with pytest.raises(ModelError) as caught:
            check_layer_types("topk", survey(nn.Sequential(layer)).sites)
        assert str(caught.value) == (
            "source 'topk' takes the weight gradient of convolutions, transposed convolutions and linear layers; "
            f"site '0' is a {kind} with a forward of its own. Exclude it (exclude=['0'])."
        )


def test_an_input_that_was_changed_in_place_is_rejected() -> None:
    (site,) = survey(nn.Sequential(nn.Linear(2, 2))).sites
    inputs = torch.zeros(1, 2)
    kept = Kept(site, (inputs,))
    assert kept.get().data_ptr() == inputs.data_ptr()
    inputs.add_(1)
    with pytest.raises(ModelError) as caught:
        kept.get()
    assert str(caught.value) == (
        "the input of site '0' was changed in place after the layer had used it, so its weight gradient cannot be taken "
        "locally. Make that operation not in place, or exclude the site."
    )
