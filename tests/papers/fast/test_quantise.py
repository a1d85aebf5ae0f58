"""The quantiser against brute force over all that a group can hold."""

from fractions import Fraction
from itertools import product
from math import floor, frexp, inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp.core.block_format import ROUNDINGS, BlockFormat
from adagp.errors import UsageError
from adagp.papers.fast.quantise import LEVELS, Blocks, keyed_noise, quantise

CORNERS = (
    *(0.0, 1.0, -1.0, 0.5, 0.25, 1.5, -1.75, 1.9999999, 0.99999994, -0.49999997, 0.50000006, 0.124999985, 3.0),
    *(0.0625, -0.03125, 1e-7, -2.5, 0.1, 7.0, -0.3),
)


def slow_group(
    numbers: list[float], block_format: BlockFormat, noise: list[int], top: int | None = None
) -> list[float]:
    """Convert one group by the definition, in exact fractions."""
    exponents = [frexp(abs(number))[1] - 1 for number in numbers if number]
    if not exponents:
        return [0.0 for _ in numbers]
    shared = max(exponents)
    shared = max(shared, (shared if top is None else top) - block_format.window + 1)
    found = _magnitudes(numbers, shared, block_format, noise)
    if block_format.overflow == "raise" and max(found) > block_format.largest:
        shared += 1
        found = _magnitudes(numbers, shared, block_format, noise)
    step = Fraction(2) ** (shared - block_format.mantissa_bits + 1)
    return [
        float((-1 if number < 0 else 1) * min(magnitude, block_format.largest) * step)
        for number, magnitude in zip(numbers, found, strict=True)
    ]


def _magnitudes(numbers: list[float], shared: int, block_format: BlockFormat, noise: list[int]) -> list[int]:
    step = Fraction(2) ** (shared - block_format.mantissa_bits + 1)
    added = {"truncate": [0] * len(numbers), "nearest": [128] * len(numbers), "stochastic": noise}[
        block_format.rounding
    ]
    return [
        floor(Fraction(abs(number)) / step + Fraction(bits, 256)) for number, bits in zip(numbers, added, strict=True)
    ]


def single(numbers: list[float]) -> list[float]:
    """Return the numbers as single precision has them."""
    return [float(one) for one in torch.tensor(numbers, dtype=torch.float32)]


@pytest.mark.parametrize("overflow", ["saturate", "raise"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mantissa", [1, 2, 3, 4])
def test_groups_of_corner_cases_are_converted_by_the_definition(mantissa: int, rounding: str, overflow: str) -> None:
    block_format = BlockFormat(2, 8, mantissa, rounding, overflow)
    pairs = [single(list(pair)) for pair in product(CORNERS, repeat=2)]
    noise = keyed_noise(2 * len(pairs), mantissa).view(-1, 2)
    found = quantise(torch.tensor(pairs), block_format, noise=noise.flatten())
    expected = [slow_group(pair, block_format, bits) for pair, bits in zip(pairs, noise.tolist(), strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("mantissa", [1, 2, 3])
def test_what_the_format_holds_stays_as_it_is_and_all_else_goes_to_a_neighbour(mantissa: int) -> None:
    """By enumeration of all representable groups of two."""
    block_format = BlockFormat(2, 8, mantissa, "nearest")
    most = block_format.largest
    steps = [sign * k * 2.0 ** (3 - mantissa) for k in range(most + 1) for sign in (1, -1)]
    groups = torch.tensor([(a, b) for a in steps for b in steps if max(abs(a), abs(b)) >= 4.0])
    for rounding in ROUNDINGS:
        noise = keyed_noise(groups.numel(), rounding)
        same = quantise(groups, BlockFormat(2, 8, mantissa, rounding), noise=noise)
        assert torch.equal(same, groups)
    for number in torch.linspace(-7.99, 7.99, 60).tolist():
        large = 4.0 if abs(number) < 4 else number
        found = quantise(torch.tensor([[large, number]]), block_format)[0, 1].item()
        nearest = min(steps, key=lambda one, number=number: abs(one - number))  # type: ignore[misc]
        assert abs(found - number) == pytest.approx(abs(nearest - number), abs=1e-9)


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(shapes, st.data())
def test_any_shape_axis_group_and_memory_order(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    group = data.draw(st.integers(1, 6))
    rounding = data.draw(st.sampled_from(ROUNDINGS))
    order = data.draw(st.permutations(range(len(shape))))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    memory = torch.randn([shape[dim] for dim in order]) * torch.randn([shape[dim] for dim in order]).exp()
    back = [order.index(dim) for dim in range(len(shape))]
    tensor = memory.permute(back)
    block_format = BlockFormat(group, 3, 2, rounding)
    noise = keyed_noise(tensor.numel(), 1)
    found = quantise(tensor, block_format, axis, noise=noise)
    assert found.shape == tensor.shape
    # Dimensions of size one may have any stride, by which they may trade places.
    kept = [dim for dim, size in enumerate(shape) if size > 1]
    assert [found.stride(dim) for dim in kept] == [tensor.stride(dim) for dim in kept]
    bits = noise.view(memory.shape).permute(back)
    top = frexp(float(tensor.abs().max()))[1] - 1
    lines = tensor.movedim(axis, -1).reshape(-1, shape[axis])
    of_noise = bits.movedim(axis, -1).reshape(-1, shape[axis])
    expected = []
    for line, its in zip(lines.tolist(), of_noise.tolist(), strict=True):
        row: list[float] = []
        for start in range(0, len(line), group):
            row += slow_group(line[start : start + group], block_format, its[start : start + group], top)
        expected.append(row)
    assert found.movedim(axis, -1).reshape(-1, shape[axis]).tolist() == expected


def drawn(seed: int = 0, *shape: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*(shape or (40, 16))) * torch.randn(*(shape or (40, 16))).exp()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_conversion_is_idempotent_odd_and_scales_with_powers_of_two(rounding: str) -> None:
    tensor, block_format = drawn(), BlockFormat(rounding=rounding)
    noise = keyed_noise(tensor.numel(), 0)
    once = quantise(tensor, block_format, noise=noise)
    if rounding == "truncate":  # rounded up, a maximum would be in another binade
        assert torch.equal(quantise(once, block_format), once)
    assert torch.equal(quantise(-tensor, block_format, noise=noise), -once)
    for power in (-40, -1, 1, 30):
        assert torch.equal(quantise(tensor * 2.0**power, block_format, noise=noise), once * 2.0**power)


def test_truncated_magnitudes_are_nested() -> None:
    tensor = drawn(1)
    four, two = (quantise(tensor, BlockFormat(16, 8, bits, "truncate")) for bits in (4, 2))
    assert torch.equal(quantise(four, BlockFormat(16, 8, 2, "truncate")), two)


def test_the_mean_over_all_noises_is_the_number_cut_to_256ths_of_a_step_exactly() -> None:
    """Exhaustive: every noise for drawn numbers; the step is 1/4, and nothing reaches the largest magnitude."""
    torch.manual_seed(2)
    numbers = (torch.rand(50) * 1.7).clamp(max=1.74)
    groups = torch.stack([torch.full((50,), 1.75), numbers], 1).repeat(256, 1)
    noise = torch.arange(256, dtype=torch.uint8).repeat_interleave(50)[:, None].repeat(1, 2)
    noise[:, 0] = 0
    found = quantise(groups, BlockFormat(2, 4, 3, "stochastic"), noise=noise.flatten())[:, 1]
    means = found.double().view(256, 50).mean(0)
    step = 0.25
    assert torch.equal(means, (numbers.double() / step * 256).floor() / 256 * step)


def test_groups_below_the_window_use_its_lowest_exponent() -> None:
    tensor = torch.tensor([[8.0, 0.0], [0.9, 0.3]])  # exponents 3 and -1
    narrow = quantise(tensor, BlockFormat(2, 1, 4, "truncate"))  # a window of 2: the second group's exponent is 2
    assert narrow.tolist() == [[8.0, 0.0], [0.5, 0.0]]
    assert quantise(tensor, BlockFormat(2, 4, 4, "truncate")).tolist()[1] == pytest.approx([0.875, 0.25])


def test_a_group_of_zeros_does_not_raise_the_window() -> None:
    tensor = torch.tensor([[0.0, 0.0], [3e-9, 1e-9]])
    assert quantise(tensor, BlockFormat(2, 1, 4))[1].tolist() == pytest.approx([3e-9, 1e-9], rel=0.1)


def test_numbers_below_single_precision_become_zero() -> None:
    tensor = torch.tensor([[1e-40, -1e-42]])
    assert not quantise(tensor, BlockFormat(2, 4, 4)).any()


@pytest.mark.parametrize("bad", [inf, -inf, nan])
def test_what_is_not_finite_passes_as_it_is(bad: float) -> None:
    tensor = torch.tensor([[1.0, bad, 0.3]])
    assert torch.equal(quantise(tensor, BlockFormat(2)).nan_to_num(), tensor.nan_to_num())


def test_parts_of_an_axis_share_no_group() -> None:
    tensor = torch.tensor([[8.0, 0.6, 0.6, 0.6]])
    found = quantise(tensor, BlockFormat(4, 8, 2), 1, parts=2)
    assert found.tolist() == [[8.0, 0.0, 0.5, 0.5]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_keep_theirs(dtype: torch.dtype) -> None:
    tensor = drawn(3).to(dtype)
    found = quantise(tensor, BlockFormat())
    assert found.dtype is dtype
    assert torch.equal(found.float(), quantise(tensor.float(), BlockFormat()))


def test_many_bits_hold_single_precision_exactly() -> None:
    tensor = torch.randn(20, 1)
    assert torch.equal(quantise(tensor, BlockFormat(1, 8, 24)), tensor)


def test_empty_tensors_stay_empty() -> None:
    assert quantise(torch.zeros(0, 4), BlockFormat()).shape == (0, 4)


def test_slabs_do_not_show() -> None:
    tensor = drawn(4, 3, 16, 9000)
    whole = quantise(tensor, BlockFormat(), 1)
    assert torch.equal(whole[:, :, 8000:], quantise(tensor, BlockFormat(16, 8), 1)[:, :, 8000:])
    assert torch.equal(whole[1, :, 5], quantise(tensor, BlockFormat(16, 8), 1)[1, :, 5])


def test_stochastic_rounding_without_noise_is_rejected() -> None:
    with pytest.raises(UsageError) as rejected:
        quantise(torch.ones(2), BlockFormat(rounding="stochastic"))
    assert str(rejected.value) == "stochastic rounding needs noise: a byte for each number of the tensor."


def test_relative_improvement_is_that_of_the_two_truncated_tensors() -> None:
    for seed in range(4):
        tensor = drawn(seed, 30, 21)
        four, two = (quantise(tensor, BlockFormat(16, 4, bits, "truncate")) for bits in (4, 2))
        slow = float((four - two).abs().double().sum() / two.abs().double().sum())
        assert Blocks(tensor, -1, 16, 4).improvement(2, 4) == pytest.approx(slow, rel=1e-6)


def test_relative_improvement_of_ordinary_tensors() -> None:
    """Ours, in groups of 16: Gaussian 0.53, its positive part 0.41."""
    torch.manual_seed(0)
    tensor = torch.randn(4000, 16)
    assert Blocks(tensor, -1, 16, 4).improvement(2, 4) == pytest.approx(0.53, abs=0.01)
    assert Blocks(tensor.relu(), -1, 16, 4).improvement(2, 4) == pytest.approx(0.41, abs=0.01)
    assert Blocks(torch.zeros(3, 16), -1, 16, 4).improvement(2, 4) == 0


LFSR_PERIOD = 255


def lfsr_noise(count: int, start: int = 1) -> Tensor:
    """Return `count` bytes of the hardware's generator: a linear-feedback shift register, x^8 + x^6 + x^5 + x^4 + 1.

    It starts at `start` (1 to 255), runs through 255 values and is never 0.
    """
    values = [start]
    while len(values) < min(count, LFSR_PERIOD):
        state = values[-1]
        bit = (state >> 7 ^ state >> 5 ^ state >> 4 ^ state >> 3) & 1
        values.append((state << 1 | bit) & 0xFF)
    return torch.tensor(values, dtype=torch.uint8).repeat(-(-count // len(values)))[:count]


def test_the_same_key_gives_the_same_noise_and_another_key_other_noise() -> None:
    first = keyed_noise(1000, "seed", 3, "conv1", 0)
    assert torch.equal(first, keyed_noise(1000, "seed", 3, "conv1", 0))
    assert not torch.equal(first, keyed_noise(1000, "seed", 4, "conv1", 0))
    assert first.dtype is torch.uint8


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert torch.equal(keyed_noise(13, "key"), keyed_noise(1000, "key")[:13])


def test_all_bytes_are_about_equally_frequent() -> None:
    counts = torch.bincount(keyed_noise(256 * 400, 1).long(), minlength=256)
    chi_squared = float(((counts - 400.0) ** 2 / 400).sum())
    assert 180 < chi_squared < 340  # 255 degrees of freedom: mean 255, standard deviation 23


def test_the_shift_register_runs_through_255_values_and_never_0() -> None:
    values = lfsr_noise(510).tolist()
    assert len(set(values[:255])) == 255
    assert 0 not in values
    assert values[:255] == values[255:]
    assert sum(values[:255]) / 255 == 128  # half a step, of 256


def test_its_first_16_values() -> None:
    assert lfsr_noise(16).tolist() == [1, 2, 4, 8, 17, 35, 71, 142, 28, 56, 113, 226, 196, 137, 18, 37]
    assert lfsr_noise(3, start=142).tolist() == [142, 28, 56]


@pytest.mark.parametrize("remainder", [0, 1, 100, 255])
def test_the_shift_register_rounds_without_bias_over_a_period(remainder: int) -> None:
    numbers = torch.full((LFSR_PERIOD,), 8 + remainder / LEVELS)  # a step of magnitudes of four bits is 1 here
    rounded = quantise(numbers, BlockFormat(rounding="stochastic"), noise=lfsr_noise(LFSR_PERIOD))
    assert int((rounded - 8).sum()) == remainder
