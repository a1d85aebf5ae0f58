"""Noise of stochastic rounding: keyed and counter-based, or that of the hardware's shift register."""

import pytest
import torch
from torch import Tensor

from adagp.core.block_format import BlockFormat
from adagp.papers.fast.noise import LEVELS, keyed_noise
from adagp.papers.fast.quantise import quantise

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
