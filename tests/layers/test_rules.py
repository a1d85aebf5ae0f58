from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.transposed import Conv1D
from torch import Tensor, nn

from adagp.errors import ModelError, OptionError
from adagp.layers.rules import (
    RULES,
    Rule,
    computes_as_built_in,
    convolution,
    linear,
    register_rule,
    rule_for,
    summarize,
)

SIZES = st.integers(1, 5)


def numbers(*shape: int) -> Tensor:
    """Return normally distributed numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def rows_by_loops(output: Tensor, channel_axis: int) -> list[Tensor]:
    """Return the batch mean of each channel of `(N, ...)`, its places in the order of memory, one number at a time."""
    axis = channel_axis % output.dim()
    rows = []
    for channel in range(output.shape[axis]):
        picked = output.select(axis, channel)
        sums = [0.0] * picked[0].numel()
        for sample in range(len(picked)):
            for place, value in enumerate(picked[sample].flatten().tolist()):
                sums[place] += value
        rows.append(torch.tensor([one / len(picked) for one in sums]))
    return rows


def assert_rows(samples: Tensor, rows: list[Tensor], height: int, width: int) -> None:
    assert samples.shape == (len(rows), height, width)
    for sample, row in zip(samples, rows, strict=True):
        torch.testing.assert_close(sample.flatten(), row)


CONVOLUTIONS = [
    (nn.Conv1d(3, 4, 3), (2, 3, 9)),
    (nn.Conv1d(4, 4, 3, groups=4, stride=2, padding=1), (3, 4, 9)),
    (nn.Conv2d(3, 4, 3), (2, 3, 6, 7)),
    (nn.Conv2d(4, 6, 3, groups=2, dilation=2), (2, 4, 8, 7)),
    (nn.Conv2d(4, 8, (1, 3), groups=4, stride=(2, 1), padding="valid"), (3, 4, 5, 6)),
    (nn.Conv2d(3, 2, 5), (2, 3, 5, 5)),
    (nn.Conv3d(2, 3, 2), (2, 2, 4, 3, 5)),
    (nn.Conv3d(2, 4, 2, groups=2, stride=2), (1, 2, 4, 4, 6)),
    (nn.ConvTranspose1d(3, 4, 3), (2, 3, 9)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2, output_padding=1), (2, 4, 3, 4)),
    (nn.ConvTranspose3d(2, 3, 2), (2, 2, 2, 3, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
def test_convolutions_equal_loops(layer: nn.Module, shape: tuple[int, ...]) -> None:
    output = layer(numbers(*shape)).detach()
    height = output[0, 0].numel() // output.shape[-1]
    assert_rows(convolution(layer, output), rows_by_loops(output, 1), height, output.shape[-1])


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
def test_an_unbatched_convolution_is_a_batch_of_one(layer: nn.Module, shape: tuple[int, ...]) -> None:
    output = layer(numbers(*shape[1:])).detach()
    assert torch.equal(convolution(layer, output), convolution(layer, output[None]))


@given(st.lists(SIZES, min_size=1, max_size=3), SIZES, SIZES)
def test_drawn_convolution_outputs_equal_loops(spatial: list[int], samples: int, channels: int) -> None:
    layer = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(spatial)](1, channels, 1)
    output = numbers(samples, channels, *spatial)
    height = output[0, 0].numel() // spatial[-1]
    assert_rows(convolution(layer, output), rows_by_loops(output, 1), height, spatial[-1])


@given(st.lists(SIZES, max_size=3), SIZES, SIZES)
def test_drawn_linear_outputs_equal_loops(middle: list[int], samples: int, features: int) -> None:
    """2-D, 3-D (a sequence) and more: places before the features are kept, all but the last of them joined."""
    output = numbers(samples, *middle, features)
    positions = middle[-1] if middle else 1
    joined = output[0, ..., 0].numel() // positions
    assert_rows(linear(nn.Linear(1, features), output), rows_by_loops(output, -1), joined, positions)


def test_an_unbatched_linear_is_a_batch_of_one() -> None:
    output = numbers(5)
    layer = nn.Linear(3, 5)
    assert torch.equal(linear(layer, output), output[:, None, None])
    assert torch.equal(linear(layer, output), linear(layer, output[None]))


class Wavelet(nn.Module):
    """A layer that no rule knows: each output channel is one frequency."""

    def __init__(self, rows: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    """Put the table of rules back afterwards."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def test_a_rule_of_ones_own() -> None:
    assert rule_for(Wavelet()) is None
    register_rule(Wavelet, lambda module, output: output.mean(0)[:, None, None])
    rule = rule_for(Wavelet())
    assert rule is not None
    assert (rule.axis, rule.kind, rule.rows(Wavelet())) == (0, "other", 3)
    assert summarize(rule, Wavelet(), numbers(5, 3)).shape == (3, 1, 1)


def test_a_rule_of_ones_own_for_outputs_on_axis_1() -> None:
    register_rule(Wavelet, lambda module, output: output.mean(0)[:, None, None], axis=1)
    rule = rule_for(Wavelet())
    assert rule is not None
    assert (rule.axis, rule.kind, rule.rows(Wavelet())) == (1, "other", 2)
    with pytest.raises(OptionError) as caught:
        register_rule(nn.Embedding, linear, axis=2)
    assert str(caught.value) == "the output axis of a weight is 2; it must be 0 or 1."


@pytest.mark.parametrize("layer_type", [nn.Linear, Conv1D])
def test_a_layer_type_has_one_rule(layer_type: type[nn.Module]) -> None:
    with pytest.raises(ModelError) as caught:
        register_rule(layer_type, linear)
    assert str(caught.value) == f"there is a rule for {layer_type.__name__} already; a layer type has one rule."


def test_subclasses_follow_their_nearest_base() -> None:
    class Padded(nn.Conv2d):
        pass

    class MorePadded(Padded):
        pass

    assert rule_for(MorePadded(1, 1, 1)) == Rule(convolution, 0, "conv")
    register_rule(Padded, linear)
    assert rule_for(MorePadded(1, 1, 1)) == Rule(linear, 0, "conv")
    assert rule_for(nn.Conv2d(1, 1, 1)) == Rule(convolution, 0, "conv")


def test_a_transposed_layer_hands_its_axis_on() -> None:
    class Upsampling(nn.ConvTranspose2d):
        pass

    assert rule_for(Upsampling(1, 1, 1)) == Rule(convolution, 1, "conv")
    register_rule(Upsampling, linear)
    assert rule_for(Upsampling(1, 1, 1)) == Rule(linear, 1, "conv")


def test_a_layer_of_a_library_that_need_not_be_there_goes_by_its_name() -> None:
    class Attending(Conv1D):
        pass

    class Namesake(nn.Module):
        """Another library's."""

    Namesake.__qualname__ = "Conv1D"
    assert rule_for(Conv1D(2, 3)) == rule_for(Attending(2, 3)) == Rule(linear, 1, "linear")
    assert rule_for(Namesake()) is None


def test_a_layer_with_a_way_of_its_own_is_told_from_those_that_are_known() -> None:
    class Renamed(nn.ConvTranspose2d):
        pass

    class Own(nn.ConvTranspose2d):
        def forward(self, *inputs: Any) -> Tensor:
            return super().forward(*inputs).relu()

    class Inside(nn.Conv2d):
        def _conv_forward(self, *inputs: Any) -> Tensor:
            output: Tensor = super()._conv_forward(*inputs)
            return output.relu()

    class Attending(Conv1D):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).relu()

    for kind in (Own, Inside, Attending, Wavelet):
        assert not computes_as_built_in(kind)
        if kind is not Wavelet:
            register_rule(kind, linear)
            assert not computes_as_built_in(kind)
    register_rule(Renamed, linear)
    assert all(map(computes_as_built_in, (nn.Conv1d, nn.ConvTranspose3d, nn.Linear, Conv1D, Renamed)))


@pytest.mark.parametrize(
    ("shape", "given"), [((3, 2), "(3, 2)"), ((2, 1, 1), "(2, 1, 1)"), ((1, 3, 2, 2), "(1, 3, 2, 2)")]
)
def test_a_rule_with_a_wrong_shape_is_rejected(shape: tuple[int, ...], given: str) -> None:
    with pytest.raises(ModelError) as caught:
        summarize(Rule(lambda module, output: torch.zeros(shape)), Wavelet(rows=3), numbers(5, 3))
    assert str(caught.value) == (
        f"the rule for Wavelet returned samples of shape {given}; "
        "it must return (rows, height, width) with rows = 3, the outputs that axis 0 of its weight counts."
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_summaries_are_single_precision_and_know_no_graph(dtype: torch.dtype) -> None:
    output = numbers(2, 3).to(dtype).requires_grad_()
    samples = summarize(Rule(linear), nn.Linear(1, 3), output)
    assert samples.dtype == torch.float32
    assert not samples.requires_grad
