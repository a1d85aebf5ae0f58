"""Block floating point in hardware: the model against numerics and the fMAC's own sums, the gates against the model."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.papers.fast.chunk_serial import chunk_serial_sum

from adagp.core.block_format import BlockFormat
from adagp.errors import OptionError
from adagp.hw.dataflows import Array
from adagp.papers.fast.hardware import BlockWidths
from adagp.papers.fast.quantise import quantise
from adagp.papers.fast.rtl import (
    BFP,
    GroupFormat,
    Groups,
    check_groups,
    draw_groups,
    group_mapping,
    group_products,
    model_cycles,
    parse_mantissas,
    run_groups,
    to_groups,
    to_values,
)
from adagp.rtl.blueprint import Blueprint, make_blueprint
from adagp.rtl.formats import FORMATS, find_format
from adagp.rtl.mapping import FACTORS, OPERATIONS, PLACEMENTS
from adagp.rtl.simulation import SimulatedChip, simulate_chip

SIZES = st.integers(1, 40)
WIDTHS = st.builds(BlockWidths, *[st.sampled_from([2, 4])] * 3)


def blueprint(number: GroupFormat = BFP, array: Array | None = None) -> Blueprint:
    words: dict[str, Any] = {"value_words": 1024, "sum_words": 2048, "program_words": 8}
    return make_blueprint("baseline", array or Array(3, 4), number, **words)


@pytest.fixture(scope="module")
def chip() -> Iterator[SimulatedChip]:
    with simulate_chip(blueprint()) as found:
        yield found


def worth(groups: Groups) -> "np.typing.NDArray[np.float64]":
    """Return the numbers that groups hold, line by line."""
    found = np.ldexp(groups.magnitudes.astype(np.float64), (groups.codes + groups.unit)[..., None])
    return found.reshape(len(found), -1)


@pytest.mark.parametrize("bits", [2, 4])
def test_conversion_is_that_of_training(bits: int) -> None:
    """Normal numbers of many sizes, ties and zeros among them: the same as the tensors that models are trained with."""
    rng = np.random.default_rng(bits)
    reals = rng.normal(size=(6, 70)) * 2.0 ** rng.integers(-20, 3, (6, 1))
    reals[0, :8] = [0.0, 1.0, 0.5, 0.375, -0.375, 2.0, 1.9999, -1e-9]
    reals[1] = 0.0
    wanted = quantise(torch.tensor(reals), BlockFormat(16, 4, bits))
    assert np.array_equal(worth(to_groups(reals, BFP, bits))[:, :70], wanted.numpy())


def test_values_hold_exponents_chunks_and_signs() -> None:
    small = GroupFormat("bfp", 2 + 2 * 3, 32, group=2, exponent_bits=2)
    groups = Groups(np.array([[[0b1101, -0b0110]]]), np.array([[2]]), 0, 2)
    assert [f"{one:08b}" for one in to_values(groups, small)[0, 0]] == ["11000110", "10101110"]


def test_model_adds_what_a_cell_adds() -> None:
    """Group by group the fMAC's own integer, from pairs of chunks, and one rounding to fp32 after each addition."""
    matrices = draw_groups(BFP, "forward", (3, 50, 2), BlockWidths(4, 2, 4), 3)
    left, right = matrices["x"], matrices["w"]
    found = group_products(left, right)
    for row in range(3):
        for column in range(2):
            total = np.float32(0)
            for group in range(4):
                pair = left.magnitudes[row, group].tolist(), right.magnitudes[column, group].tolist()
                whole, passes = chunk_serial_sum(*pair, (2, 4))
                assert passes == 2
                exponent = int(left.codes[row, group] + right.codes[column, group]) + left.unit + right.unit
                total = total + np.float32(np.ldexp(float(whole), exponent))
            assert total.view(np.uint32) == found[row, column]


@pytest.mark.medium
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("dataflow", sorted(PLACEMENTS))
def test_products_of_groups(dataflow: str, operation: str, chip: SimulatedChip) -> None:
    """Sums to the bit, cycles those of adagp.hw's fMAC arrays, for all widths."""

    @settings(max_examples=8)
    @given(SIZES, SIZES, SIZES, WIDTHS, st.integers(0, 1000))
    def products(rows: int, depth: int, columns: int, widths: BlockWidths, seed: int) -> None:
        sizes = (rows, depth, columns)
        matrices = draw_groups(BFP, operation, sizes, widths, seed)
        found, counts = run_groups(chip, group_mapping(BFP, dataflow, operation, sizes), matrices)
        left, right = (matrices[name] for name in FACTORS[operation][:2])
        assert np.array_equal(found, group_products(left, right))
        exact = worth(left) @ worth(right).T
        assert np.allclose(found.astype(np.uint32).view(np.float32), exact, rtol=1e-5, atol=1e-5)
        wanted = model_cycles(chip.blueprint, dataflow, operation, sizes, widths)
        assert counts.cycles == counts.span == wanted
        again, _ = run_groups(chip, group_mapping(BFP, dataflow, operation, sizes), matrices, adds=True)
        assert np.array_equal(again, group_products(left, right, found))

    products()


@pytest.mark.medium
def test_every_pair_of_chunks(chip: SimulatedChip) -> None:
    """Every signed magnitude of four bits times every other, alone in its group and beside others."""
    magnitudes = np.arange(-15, 16)
    alone = np.zeros((31, 1, 16), np.int64)
    alone[:, 0, 5] = magnitudes
    among = np.tile(np.arange(-8, 8), (31, 1, 1))
    among[:, 0, 5] = magnitudes
    codes = np.zeros((31, 1), np.int64)
    for numbers in (alone, among):
        matrices = {"x": Groups(numbers, codes, 0, 2), "w": Groups(alone, codes, 0, 2)}
        found, _ = run_groups(chip, group_mapping(BFP, "os", "forward", (31, 16, 31)), matrices)
        wanted = (magnitudes[:, None] * magnitudes[None]).astype(np.float32)
        assert np.array_equal(found.astype(np.uint32).view(np.float32), wanted)


@pytest.mark.medium
@pytest.mark.parametrize("unit", [-90, -75, -66, 40, 56])
def test_sums_at_the_ends_of_fp32(unit: int, chip: SimulatedChip) -> None:
    """Exponents so small that products are rounded to subnormal numbers, or vanish, and so large that sums are infinite."""
    rng = np.random.default_rng(abs(unit))
    matrices = {
        name: Groups(rng.integers(-15, 16, (7, 3, 16)), rng.integers(0, 16, (7, 3)), unit, 2) for name in ("x", "w")
    }
    found, _ = run_groups(chip, group_mapping(BFP, "ws", "forward", (7, 48, 7)), matrices)
    assert np.array_equal(found, group_products(matrices["x"], matrices["w"]))


def test_the_format_is_registered() -> None:
    assert find_format("bfp") is BFP


def test_what_groups_cannot_do_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^design 'low' has a predictor, which works on single numbers; format bfp "):
        make_blueprint("low", Array(2, 2), BFP)
    with pytest.raises(OptionError) as error:
        _ = blueprint().core.single
    assert str(error.value) == (
        "format bfp has groups of numbers, which only arrays multiply; this needs single numbers. "
        f"Choose from: {', '.join(sorted(FORMATS))}."
    )
    with pytest.raises(OptionError, match=r"^cannot read the mantissa bits '3'; write 2 or 4, or three of them, "):
        parse_mantissas("3")
    assert parse_mantissas("4,2,4") == BlockWidths(4, 2, 4)
    with pytest.raises(OptionError, match=r"^the product needs 1400 words in each bank of values; there are 1024. "):
        check_groups(blueprint(), "ws", "forward", (700, 16, 16), BlockWidths(4, 4, 4))
