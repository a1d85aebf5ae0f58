"""Means over the batch and pooling against slow sums, in any shape and memory order."""

import itertools
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.transposed import Conv1D
from torch import Tensor, nn

from adagp.layers.rules import Rule, kept_mean, rule_for, summarize
from adagp.layers.summaries import KeptMean, batch_mean, pool_average, pool_maximum, stand_in

SIZES = st.integers(1, 5)


def numbers(*shape: int) -> Tensor:
    """Return normally distributed numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@given(st.lists(SIZES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_batch_mean_is_one_in_any_memory_order(shape: list[int], random: Random) -> None:
    order = list(range(1, len(shape)))
    random.shuffle(order)
    back = [0, *(1 + order.index(axis) for axis in range(1, len(shape)))]
    output = numbers(*shape).permute(0, *order).contiguous().permute(back)
    assert output.shape == tuple(shape)
    mean = batch_mean(output)
    torch.testing.assert_close(mean, sum(output[sample] for sample in range(shape[0])) / shape[0])
    assert mean.untyped_storage().nbytes() == 4 * mean.numel()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_batch_mean_is_taken_in_single_precision(dtype: torch.dtype) -> None:
    output = torch.tensor([[1.0], [1.0], [2.0]], dtype=dtype)
    assert batch_mean(output).tolist() == [pytest.approx(4 / 3, rel=1e-6)]


LAYERS = [
    (nn.Conv1d(2, 3, 1), (4, 3, 5), [torch.contiguous_format]),
    (nn.Conv2d(2, 3, 1), (4, 3, 5, 2), [torch.contiguous_format, torch.channels_last]),
    (nn.Conv3d(2, 3, 1), (4, 3, 2, 5, 2), [torch.contiguous_format, torch.channels_last_3d]),
    (nn.ConvTranspose1d(2, 3, 1), (4, 3, 5), [torch.contiguous_format]),
    (nn.ConvTranspose2d(2, 4, 1, groups=2), (5, 4, 5, 2), [torch.contiguous_format, torch.channels_last]),
    (nn.Linear(2, 3), (4, 3), [torch.contiguous_format]),
    (nn.Linear(2, 3), (4, 5, 3), [torch.contiguous_format]),
    (nn.Linear(2, 3), (4, 2, 5, 3), [torch.contiguous_format, torch.channels_last]),
    (Conv1D(3, 2), (4, 5, 3), [torch.contiguous_format]),
]


@pytest.mark.parametrize(("module", "shape", "forms"), LAYERS)
def test_a_kept_mean_is_what_the_rule_gives(
    module: nn.Module, shape: tuple[int, ...], forms: list[torch.memory_format]
) -> None:
    """Bit by bit, for other shapes and memory orders in turn, in the same memory as long as these do not change."""
    rule = rule_for(module)
    assert rule is not None
    kept = kept_mean(rule, module)
    for form in forms:
        for samples in (shape[0], 1, shape[0] + 2):
            places = set()
            for _ in range(2):
                output = torch.randn(samples, *shape[1:]).contiguous(memory_format=form).requires_grad_()
                mean = kept.take(output)
                assert mean is not None
                assert torch.equal(mean, summarize(rule, module, output))
                assert mean.grad_fn is None
                places.add(mean.data_ptr())
            assert len(places) == 1


@pytest.mark.parametrize(
    "output",
    [
        numbers(3, 5, 2),  # one sample without a batch
        numbers(4, 3, 5, 2).double(),
        numbers(4, 3, 5, 2).bfloat16(),
        numbers(4, 3, 5, 4)[..., ::2],  # with gaps
        numbers(4, 2, 5, 2),  # another number of rows than the weight's: the rule's error is due
        numbers(2, 3, 256, 256),  # too large to be kept
    ],
    ids=["unbatched", "double", "half", "gaps", "rows", "large"],
)
def test_what_is_not_kept_is_left_to_the_rule(output: Tensor) -> None:
    for module in (nn.Conv2d(2, 3, 1), nn.ConvTranspose2d(2, 3, 1)):
        rule = rule_for(module)
        assert rule is not None
        assert kept_mean(rule, module).take(output) is None


def test_a_rule_of_the_users_own_is_left_to_itself() -> None:
    own = kept_mean(Rule(lambda module, output: output.mean(0)[:, None, None]), nn.Linear(2, 3))
    assert own.take(numbers(4, 3)) is None


def test_a_view_that_must_copy_shows_no_later_mean() -> None:
    kept = KeptMean(lambda mean: mean.t().reshape(-1, 1, 1), rows=6, dimensions=2)
    assert kept.take(numbers(4, 2, 3)) is None


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Conv1d(2, 16, 5, stride=1, padding=2, padding_mode="circular"), numbers(64, 2, 1024)),
        (nn.Conv2d(3, 32, 3, padding=1, bias=False), numbers(40, 3, 32, 32)),
        (nn.Conv2d(3, 64, 3, stride=2, padding="valid", dilation=2), numbers(100, 3, 32, 32)),
        (nn.Conv2d(4, 32, 3, groups=2), numbers(50, 4, 32, 32).contiguous(memory_format=torch.channels_last)),
        (nn.Conv3d(1, 8, 2), numbers(48, 1, 16, 17, 18)),
        (nn.Linear(8, 64), numbers(64, 300, 8)),
    ],
)
def test_the_answer_to_the_mean_is_the_mean_answer(
    module: nn.Module, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-5 of its largest number."""
    monkeypatch.setattr("adagp.layers.summaries._LARGE", 2**20)
    output = module(inputs)
    found = stand_in(module, (inputs,), output)
    assert found is not output
    assert found.shape == (1, *output.shape[1:])
    assert found.grad_fn is None
    expected = output.detach().double().mean(0)
    assert (found[0] - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_another_layers_answer_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stands in for a layer that may be no affine one, or for an output that is cheap to read, or not its own."""
    monkeypatch.setattr("adagp.layers.summaries._LARGE", 2**20)

    class Squared(nn.Conv2d):
        def forward(self, *inputs: Tensor) -> Tensor:
            return super().forward(*inputs) ** 2

    inputs = numbers(40, 3, 32, 32)
    for module, one in (
        (Squared(3, 32, 3, padding=1), inputs),
        (nn.Conv2d(3, 11, 3, padding=1), torch.cat([inputs, inputs, inputs])),  # not four times as large
        (nn.Conv2d(3, 32, 3, padding=1), inputs[:2]),  # small
        (nn.Conv2d(3, 32, 3, padding=1).double(), inputs.double()),
        (nn.Linear(4, 2**20), numbers(4)),  # no batch
    ):
        output = module(one)
        assert stand_in(module, (one,), output) is output
    up = nn.ConvTranspose2d(3, 16, 2, stride=2)
    output = up(inputs, output_size=(65, 64))  # which hooks are not told
    assert stand_in(up, (inputs,), output) is output
    layer = nn.Conv2d(3, 32, 3, padding=1)
    layer.register_forward_hook(lambda module, inputs, output: output.relu())
    layer.register_forward_hook(lambda module, inputs, output: None)  # the watcher's
    output = layer(inputs)
    assert stand_in(layer, (inputs,), output) is output
    assert stand_in(layer, (), output) is output  # given by name


def cell_by_loops(sample: Tensor, grid: int, row: int, column: int, *, maximum: bool) -> float:
    """Return one cell of a `grid` x `grid` picture of `sample`, whose sides are multiples of `grid`."""
    high, wide = sample.shape[0] // grid, sample.shape[1] // grid
    values = [
        sample[row * high + down, column * wide + across].item()
        for down, across in itertools.product(range(high), range(wide))
    ]
    return max(values) if maximum else sum(values) / len(values)


@given(SIZES, st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_pooling_equals_loops_where_the_grid_divides(rows: int, grid: int, high: int, wide: int, maximum: bool) -> None:
    samples = numbers(rows, grid * high, grid * wide)
    pooled = pool_maximum(samples, grid) if maximum else pool_average(samples, grid)
    assert pooled.shape == (rows, 1, grid, grid)
    for sample, row, column in itertools.product(range(rows), range(grid), range(grid)):
        by_hand = cell_by_loops(samples[sample], grid, row, column, maximum=maximum)
        assert pooled[sample, 0, row, column].item() == pytest.approx(by_hand, abs=1e-6)


@given(SIZES, st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_a_sequence_fills_the_grid_line_by_line(rows: int, grid: int, length: int, maximum: bool) -> None:
    samples = numbers(rows, 1, grid * grid * length)
    pooled = pool_maximum(samples, grid) if maximum else pool_average(samples, grid)
    assert pooled.shape == (rows, 1, grid, grid)
    for sample, place in itertools.product(range(rows), range(grid * grid)):
        values = samples[sample, 0, place * length : (place + 1) * length].tolist()
        by_hand = max(values) if maximum else sum(values) / length
        assert pooled[sample, 0].flatten()[place].item() == pytest.approx(by_hand, abs=1e-6)


@given(SIZES, SIZES, SIZES, st.integers(1, 4), st.booleans())
def test_pooled_values_stay_among_the_samples(rows: int, height: int, width: int, grid: int, maximum: bool) -> None:
    samples = numbers(rows, height, width)
    pooled = pool_maximum(samples, grid) if maximum else pool_average(samples, grid)
    assert pooled.shape == (rows, 1, grid, grid)
    flat = samples.flatten(1)
    if maximum:
        assert torch.equal(pooled.flatten(1).amax(1), flat.amax(1))
    else:
        assert (pooled.flatten(1).amax(1) <= flat.amax(1) + 1e-6).all()
        assert (pooled.flatten(1).amin(1) >= flat.amin(1) - 1e-6).all()


@pytest.mark.parametrize("grid", [1, 4])
def test_one_number_fills_the_grid_and_shares_no_memory(grid: int) -> None:
    samples = numbers(3, 1, 1)
    for pooled in (pool_average(samples, grid), pool_maximum(samples, grid)):
        assert torch.equal(pooled, samples[:, None].expand(3, 1, grid, grid))
        assert pooled.data_ptr() != samples.data_ptr()
