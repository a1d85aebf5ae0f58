"""Number formats: the numpy models against torch and plain integers, and the gates of real PEs against the models."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.marks import slow

from adagp.errors import OptionError
from adagp.rtl import gates
from adagp.rtl.formats import FORMATS, Floats, Integers, NumberFormat, Words, find_format
from adagp.rtl.mapping import find_mapping
from adagp.rtl.products import expected, run_product
from adagp.rtl.simulation import SimulatedChip

pytestmark = pytest.mark.medium

ChipOf = Callable[[str], SimulatedChip]
FLOATS = ("bf16", "fp16", "fp32")
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def corners(number: Floats, count: int) -> Words:
    """Return words of a float format: zeros, subnormals, the largest, infinities, NaN, powers of two, drawn bits."""
    mantissa, top = number.mantissa_bits, (1 << number.exponent_bits) - 1
    bias = top >> 1
    fields = [
        (0, 0),
        (0, 1),
        (0, (1 << mantissa) - 1),
        (1, 0),
        (1, 1),
        (top - 1, (1 << mantissa) - 1),
        (top, 0),
        (top, 1),
    ]
    fields += [(bias + shift, bits) for shift in (-1, 0, 1, mantissa) for bits in (0, 1, 1 << (mantissa - 1))]
    words = [
        (sign << (number.value_bits - 1)) | (field << mantissa) | bits for sign in (0, 1) for field, bits in fields
    ]
    drawn = np.random.default_rng(3).integers(0, 1 << number.value_bits, count - len(words))
    return np.concatenate([np.array(words, np.int64), drawn])


def test_every_product_of_int8(chip_of: ChipOf) -> None:
    chip, number = chip_of("int8"), FORMATS["int8"]
    x = np.arange(256)[:, None]
    found, _ = run_product(chip, find_mapping("ws", "forward", 256, 1, 256), {"x": x, "w": x.T})
    signed = np.arange(256).astype(np.int8).astype(np.int64)
    assert np.array_equal(number.decode_sums(found) * 256, signed[:, None] * signed[None])


@pytest.mark.parametrize("name", [slow(name) if name != "bf16" else name for name in FLOATS])
def test_corner_cases_of_floats_in_gates(name: str, chip_of: ChipOf) -> None:
    """Every corner case times every other, added to every third: two products a sum."""
    chip, number = chip_of(name), FORMATS[name]
    assert isinstance(number, Floats)
    words = corners(number, 100)
    one = int(number.encode(1.0))
    for shift in (0, 1, 17):
        x = np.stack([np.roll(words, shift), words], axis=1)
        w = np.stack([np.full(100, one), np.roll(words, 2 * shift)])
        matrices = {"x": x, "w": w}
        found, _ = run_product(chip, find_mapping("os", "forward", 100, 2, 100), matrices)
        wanted = expected(number, "forward", matrices)
        assert np.array_equal(found, wanted)
        reals = [torch.tensor(number.decode(one), dtype=torch.float32) for one in (x, w)]
        by_torch = (reals[0][:, :1] * reals[0][0, 0].new_ones(1, 100)) * reals[1][:1] + reals[0][:, 1:] * reals[1][1:]
        assert np.array_equal(number.decode_sums(wanted), by_torch.double().numpy(), equal_nan=True)


@pytest.mark.parametrize("name", FLOATS)
def test_conversion_is_torchs(name: str) -> None:
    number = FORMATS[name]
    sums = np.concatenate([corners(FORMATS["fp32"], 3000), corners(number, 500) << (0 if name == "fp32" else 16)])  # type: ignore[arg-type]
    reals = torch.tensor(number.decode_sums(sums), dtype=torch.float32)
    assert np.array_equal(number.decode(number.convert(sums)), reals.to(TORCH[name]).double().numpy(), equal_nan=True)


def test_conversion_of_integers_rounds_half_up_and_saturates() -> None:
    number = FORMATS["int8"]
    assert isinstance(number, Integers)
    sums = np.array([0, 7, 8, -8, -9, 24, 1 << 20, -(1 << 20)]) & 0xFFFFFFFF
    assert number.decode(number.convert(sums)).tolist() == [v / 16 for v in (0, 0, 1, 0, -1, 2, 127, -128)]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_the_element_unit_does_to_one_word(name: str) -> None:
    """Conversion, promotion, sign and ReLU in gates, in Amaranth's simulator."""
    from amaranth.hdl import Module, Signal
    from amaranth.sim import Simulator

    number = FORMATS[name]
    count = 120
    single = FORMATS["fp32"]
    assert isinstance(single, Floats)
    if isinstance(number, Floats):
        values, sums = corners(number, count), corners(single, count)
    else:
        rng = np.random.default_rng(1)
        values = rng.integers(0, 1 << number.value_bits, count)
        sums = rng.integers(0, 1 << number.sum_bits, count) >> rng.integers(0, number.sum_bits, count)
    module = Module()
    value, total = Signal(number.value_bits), Signal(number.sum_bits)
    narrow, wide, above, shown = Signal(number.value_bits), Signal(number.sum_bits), Signal(), Signal(number.sum_bits)
    module.d.comb += [
        narrow.eq(gates.convert(module, number, total)),
        wide.eq(gates.promote(module, number, value)),
        above.eq(gates.positive(number, value)),
        shown.eq(gates.relu(number, total)),
    ]
    found = []

    async def bench(context: object) -> None:
        for one, other in zip(values, sums, strict=True):
            context.set(value, int(one))  # type: ignore[attr-defined]
            context.set(total, int(other))  # type: ignore[attr-defined]
            await context.delay(1e-9)  # type: ignore[attr-defined]
            found.append([context.get(signal) for signal in (narrow, wide, above, shown)])  # type: ignore[attr-defined]

    simulator = Simulator(module)
    simulator.add_testbench(bench)
    simulator.run()
    wanted = [number.convert(sums), number.promote(values), number.positive(values), number.relu(sums)]
    assert np.array_equal(np.array(found).T, np.array(wanted))


def test_unknown_format() -> None:
    with pytest.raises(OptionError, match=r"^unknown number format 'int32'. Did you mean 'int8'\? Choose from: "):
        find_format("int32")


def encoded(number: NumberFormat, reals: list[float]) -> list[float]:
    return [float(one) for one in number.decode(number.encode(reals))]


def test_encoding_takes_the_nearest() -> None:
    assert encoded(FORMATS["int16"], [0.5, -1.0, 1 / 512, 1e9]) == [0.5, -1.0, 1 / 256, 32767 / 256]
    assert encoded(FORMATS["bf16"], [1.0, 1 + 2**-8, 1 + 3 * 2**-8]) == [1.0, 1.0, 1 + 2**-6]
