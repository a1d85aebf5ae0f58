"""The memory of ZeRO by its paper's formulas."""

import pytest

from adagp.hw import Accelerator
from adagp.pipe.chips import weight_memory

ADAM = Accelerator(word_bits=16, optimizer_words=2)


@pytest.mark.parametrize("copies", [1, 4, 64])
def test_zero_by_formula(copies: int) -> None:
    """Rajbhandari et al. 2020: 2 + 2 + 12 bytes a weight, of which each stage shards more."""
    weights = 7_500_000
    expected = [16, 4 + 12 / copies, 2 + 14 / copies, 16 / copies]
    for zero, bytes_each in enumerate(expected):
        assert weight_memory(weights, ADAM, copies, zero).total == pytest.approx(weights * bytes_each)


def test_widths_of_the_accelerator_count() -> None:
    memory = weight_memory(100, Accelerator(word_bits=16, optimizer_words=2, state_bits=16, master_bits=24))
    assert (memory.weights, memory.gradients, memory.optimizer) == (200, 200, 100 * (2 * 2 + 3))


def test_words_of_32_bits_need_no_copy() -> None:
    memory = weight_memory(100, Accelerator(word_bits=32, optimizer_words=1))
    assert (memory.weights, memory.gradients, memory.optimizer) == (400, 400, 400)
