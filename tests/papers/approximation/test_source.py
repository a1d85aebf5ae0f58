"""The approximated gradient against a slow loop of the published algorithm, over drawn shapes."""

from itertools import product
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transposed import output_last, transposed_convolutions
from torch import Tensor, nn

import adagp
from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site, survey
from adagp.papers.approximation.source import RandomSource, TopKSource, choose, position_shape, topk_gradient
from adagp.sources import BatchContext
from adagp.sources.local import weight_gradient


def slow_topk(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor, k: int) -> Tensor:
    """Algorithm 1 with several positions: loops over samples, channels, chosen positions and kernel taps."""
    result = torch.zeros_like(layer.weight)
    samples, channels, height, width = gradient.shape
    group_rows, group_inputs = channels // layer.groups, layer.weight.shape[1]
    for sample, channel in product(range(samples), range(channels)):
        values = gradient[sample, channel]
        order = sorted(product(range(height), range(width)), key=lambda at: -abs(values[at].item()))
        chosen = order[:k]
        others = sum(values[at].item() for at in order[k:])
        first = channel // group_rows * group_inputs
        for y, x in chosen:
            for row, column in product(range(layer.kernel_size[0]), range(layer.kernel_size[1])):
                at_y = y * layer.stride[0] + row * layer.dilation[0] - int(layer.padding[0])
                at_x = x * layer.stride[1] + column * layer.dilation[1] - int(layer.padding[1])
                if 0 <= at_y < inputs.shape[2] and 0 <= at_x < inputs.shape[3]:
                    pixel = inputs[sample, first : first + group_inputs, at_y, at_x]
                    result[channel, :, row, column] += pixel * (values[y, x].item() + others / k)
    return result.detach()


@st.composite
def cases(draw: st.DrawFn) -> tuple[nn.Conv2d, Tensor, int]:
    torch.manual_seed(draw(st.integers(0, 999)))
    pair = st.tuples(st.integers(1, 2), st.integers(1, 2))
    layer = nn.Conv2d(
        4,
        draw(st.sampled_from([4, 8])),
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        draw(pair),
        draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        draw(pair),
        draw(st.sampled_from([1, 2, 4])),
        bias=False,
    ).double()
    inputs = torch.randn(draw(st.integers(1, 3)), 4, draw(st.integers(5, 7)), draw(st.integers(5, 7))).double()
    return layer, inputs, draw(st.integers(1, 4))


@settings(max_examples=40)
@given(cases())
def test_equals_the_published_loop(case: tuple[nn.Conv2d, Tensor, int]) -> None:
    layer, inputs, k = case
    gradient = torch.randn_like(layer(inputs))
    k = min(k, gradient[0, 0].numel())
    found = topk_gradient(survey(layer).sites[0], inputs, gradient, k)
    torch.testing.assert_close(found, slow_topk(layer, inputs, gradient, k))


def slow_transposed(layer: nn.ConvTranspose2d, inputs: Tensor, gradient: Tensor, k: int) -> Tensor:
    """The same for a transposed convolution: all pixels and taps are tried for those that reach a chosen position."""
    result = torch.zeros_like(layer.weight)
    samples, channels, height, width = gradient.shape
    each, group_inputs = channels // layer.groups, layer.in_channels // layer.groups
    for sample, channel in product(range(samples), range(channels)):
        values = gradient[sample, channel]
        order = sorted(product(range(height), range(width)), key=lambda at: -abs(values[at].item()))
        others = sum(values[at].item() for at in order[k:])
        first = channel // each * group_inputs
        for pixel in product(range(inputs.shape[2]), range(inputs.shape[3])):
            for tap in product(range(layer.kernel_size[0]), range(layer.kernel_size[1])):
                at_y = pixel[0] * layer.stride[0] + tap[0] * layer.dilation[0] - int(layer.padding[0])
                at_x = pixel[1] * layer.stride[1] + tap[1] * layer.dilation[1] - int(layer.padding[1])
                if (at_y, at_x) in order[:k]:
                    numbers = inputs[sample, first : first + group_inputs, pixel[0], pixel[1]]
                    weight = values[at_y, at_x].item() + others / k
                    result[first : first + group_inputs, channel % each, tap[0], tap[1]] += numbers * weight
    return result.detach()


@settings(max_examples=40)
@given(transposed_convolutions(dimensions=st.just(2)), st.integers(1, 4))
def test_transposed_convolutions_equal_a_slow_loop(case: tuple[nn.Module, Tensor], k: int) -> None:
    layer, inputs = case
    assert isinstance(layer, nn.ConvTranspose2d)
    gradient = torch.randn_like(layer(inputs))
    k = min(k, gradient[0, 0].numel())
    found = topk_gradient(survey(layer).sites[0], inputs, gradient, k)
    torch.testing.assert_close(found, slow_transposed(layer, inputs, gradient, k))


@settings(max_examples=100)
@given(output_last())
def test_all_positions_of_a_transposed_layer_are_exact(case: tuple[nn.Module, Tensor]) -> None:
    layer, inputs = case
    (site,) = survey(layer).sites
    gradient = torch.randn_like(layer(inputs))
    found = topk_gradient(site, inputs, gradient, prod(position_shape(site, gradient.shape)))
    torch.testing.assert_close(found, weight_gradient(site, inputs, gradient))


def test_one_position_gets_the_whole_sum_as_published() -> None:
    layer = nn.Conv2d(1, 1, 1, bias=False)
    inputs = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    gradient = torch.tensor([[[[0.1, -0.5], [0.2, 0.3]]]])
    found = topk_gradient(survey(layer).sites[0], inputs, gradient, 1)
    assert found.item() == pytest.approx(2.0 * (0.1 - 0.5 + 0.2 + 0.3))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 5)),
        (nn.Conv3d(2, 3, 2), (2, 2, 4, 3, 4)),
        (nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect"), (2, 2, 5, 5)),
        (nn.Conv2d(2, 3, 2, padding="same"), (2, 2, 5, 5)),
        (nn.Linear(4, 3), (5, 4)),
        (nn.Linear(4, 3), (2, 6, 4)),
        (nn.Linear(4, 3), (2, 2, 3, 4)),
    ],
)
def test_all_positions_are_exact(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(shape)
    (site,) = survey(layer).sites
    gradient = torch.randn_like(layer(inputs))
    positions = (gradient[0, 0] if not isinstance(layer, nn.Linear) else gradient[..., 0]).numel()
    if isinstance(layer, nn.Linear) and gradient.dim() > 2:
        positions //= len(gradient)
    torch.testing.assert_close(
        topk_gradient(site, inputs, gradient, positions), weight_gradient(site, inputs, gradient)
    )


@pytest.mark.parametrize("shape", [(6, 3), (2, 5, 3)])
def test_linear_equals_a_slow_loop(shape: tuple[int, ...]) -> None:
    """Positions are the samples; in a sequence, the positions of each sample."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False).double()
    gradient = torch.randn(shape).double()
    inputs = torch.randn(*shape[:-1], 4).double()
    expected = torch.zeros(3, 4).double()
    sequences = [(inputs, gradient)] if len(shape) == 2 else list(zip(inputs, gradient, strict=True))
    for rows, slopes in sequences:
        for neuron in range(3):
            order = slopes[:, neuron].abs().argsort(descending=True).tolist()
            others = slopes[order[2:], neuron].sum()
            for place in order[:2]:
                expected[neuron] += rows[place] * (slopes[place, neuron] + others / 2)
    torch.testing.assert_close(topk_gradient(survey(layer).sites[0], inputs, gradient, 2), expected)


@pytest.mark.parametrize("scale", ["unbiased", "published"])
@pytest.mark.parametrize("below", [True, False])
def test_the_source_sees_the_gradient_at_the_output(scale: Any, below: bool) -> None:
    """Whether or not anything below the site needs a gradient, and with a scaled loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True))
    sites = survey(model).sites
    inputs = torch.randn(4, 1, 8, 8)
    if not below:
        model.requires_grad_(False)
    source = TopKSource(k=2, scale=scale)
    source.begin(BatchContext(Step(0, 0), scale=8.0))
    hidden = model[0](inputs)
    output = model[1](hidden)
    changed = source.watch(sites[1], (hidden,), output)
    assert changed is not None
    aim = torch.randn_like(changed)
    (8.0 * (model[2](changed) * aim).sum()).backward()
    gradient = aim * (output > 0)
    expected = topk_gradient(sites[1], hidden.detach(), gradient, 2) / (4 if scale == "published" else 1)
    torch.testing.assert_close(source.produce(sites), [None, expected])
    source.forget()
    assert source.produce(sites) == [None, None]


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5), nn.Tanh())
        self.recurrent, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.layers(images)
        return self.head(self.recurrent(self.recurrent(hidden).tanh()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("k", "scale"), [(1, "unbiased"), (4, "unbiased"), (2, "published")])
def test_micro_batches_are_the_whole_batch(k: int, scale: Any) -> None:
    """Linear layers without a sequence choose among all samples of a batch; 4 are more than a micro-batch has."""
    found = []
    for count in (1, 2):
        torch.manual_seed(0)
        model = CalledTwice()
        inputs, labels = torch.randn(6, 1, 8, 8), torch.arange(6) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        schedule, source = "sites=all; first=allowed; source=topk", TopKSource(k, scale)
        trainer = adagp.attach(model, optimizer, schedule=schedule, steps=1, sources={"topk": source})
        with trainer.batch() as batch:
            for number, (part, targets) in enumerate(zip(inputs.chunk(count), labels.chunk(count), strict=True)):
                batch.backward(F.cross_entropy(model(part), targets) / count, more=number + 1 < count)
            found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
            batch.step()
    torch.testing.assert_close(*found)


def test_too_few_positions_are_rejected_before_training() -> None:
    sites = survey(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))).sites
    source = TopKSource(k=5)
    with pytest.raises(OptionError) as caught:
        source.prepare({sites[0]: torch.Size((4, 2, 2, 2))})
    assert str(caught.value) == (
        "topk keeps 5 positions, but the output (4, 2, 2, 2) of site '0' (Conv2d) has only 4. "
        "Give a smaller k, or exclude the site."
    )
    source.begin(BatchContext(Step(0, 0)))
    changed = source.watch(sites[1], (torch.zeros(4, 8),), torch.zeros(4, 3))
    assert changed is not None
    changed.sum().backward()
    with pytest.raises(OptionError) as caught:
        source.produce(sites)
    assert str(caught.value) == (
        "topk keeps 5 positions, but the output (4, 3) of site '2' (Linear) has only 4. "
        "Give a smaller k, or exclude the site."
    )
    source.prepare({sites[1]: torch.Size((5, 3))})


def test_wrong_options() -> None:
    with pytest.raises(OptionError, match=r"^topk keeps 0 positions; it must keep 1 or more\.$"):
        TopKSource(0)
    with pytest.raises(OptionError, match=r"^topk's scale is 'half'; it must be unbiased or published\.$"):
        TopKSource(scale="half")  # type: ignore[arg-type]  # that is the test


@given(st.integers(1, 4), st.integers(1, 20), st.integers(1, 40), st.booleans(), st.booleans())
def test_the_largest_position_is_found_in_either_memory_order(
    samples: int, channels: int, positions: int, last: bool, double: bool
) -> None:
    generator = torch.Generator().manual_seed(channels + positions)
    gradient = torch.randn(samples, channels, positions, generator=generator, dtype=torch.float64 if double else None)
    if last:
        gradient = gradient.transpose(1, 2).contiguous().transpose(1, 2)
    found, weights = choose(gradient, 1)
    assert torch.equal(found[..., 0], gradient.abs().argmax(-1))
    torch.testing.assert_close(weights[..., 0], gradient.sum(-1))


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_position_is_chosen_where_none_is_larger(value: float) -> None:
    found, _ = choose(torch.full((2, 3, 5), value), 1)
    assert found.shape == (2, 3, 1)
    assert ((found >= 0) & (found < 5)).all()


SITES = survey(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 5, bias=False))).sites


def produced(source: RandomSource, sites: tuple[Site, ...], step: Step) -> list[torch.Tensor]:
    source.begin(BatchContext(step))
    return [one for one in source.produce(sites) if one is not None]


@pytest.mark.parametrize("samples", [4, 50])
def test_random_has_deviation_one_over_the_batch(samples: int) -> None:
    (site,) = survey(nn.Linear(300, 200, bias=False)).sites
    source = RandomSource()
    source.watch(site, (), torch.zeros(samples, 200))
    (one,) = produced(source, (site,), Step(0, 0))
    assert one.mean().item() == pytest.approx(0, abs=3 / samples / 60_000**0.5)
    assert one.std().item() == pytest.approx(1 / samples, rel=0.02)


def test_random_is_fresh_every_batch_and_the_same_for_the_same_step() -> None:
    def at(step: Step, seed: int = 0) -> torch.Tensor:
        source = RandomSource(seed)
        source.watch(SITES[0], (), torch.zeros(2, 3))
        return produced(source, SITES[:1], step)[0]

    assert torch.equal(at(Step(1, 5)), at(Step(1, 5)))
    assert not torch.equal(at(Step(1, 5)), at(Step(1, 6)))
    assert not torch.equal(at(Step(1, 5)), at(Step(1, 5), seed=1))


def test_random_gives_nothing_for_sites_that_were_not_called() -> None:
    source = RandomSource()
    source.watch(SITES[1], (), torch.zeros(2, 3))
    source.begin(BatchContext(Step(0, 0)))
    missing, found = source.produce(SITES)
    assert missing is None
    assert found is not None
    source.forget()
    assert source.produce(SITES) == [None, None]
