"""The block format: what it holds, and what is rejected."""

import pytest

from adagp.core.block_format import BlockFormat
from adagp.errors import OptionError


@pytest.mark.parametrize(("mantissa", "group", "bits"), [(2, 16, 52), (4, 16, 100), (6, 16, 148), (5, 9, 85)])
def test_a_group_has_an_exponent_and_chunks_with_signs(mantissa: int, group: int, bits: int) -> None:
    assert BlockFormat(group=group, mantissa_bits=mantissa).group_bits == bits


def test_sizes_of_the_format() -> None:
    four = BlockFormat()
    assert (four.largest, four.window, four.chunks) == (15, 16, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mantissa_bits": 0}, "mantissa bits of block floating point: 0 was given; it must be 1 to 24."),
        ({"group": 0}, "group of block floating point: 0 was given; it must be 1 to 65536."),
        ({"exponent_bits": 9}, "exponent bits of block floating point: 9 was given; it must be 1 to 8."),
        ({"rounding": "up"}, "unknown rounding 'up'. Choose from: nearest, stochastic, truncate."),
        ({"overflow": "wrap"}, "unknown overflow 'wrap'. Choose from: raise, saturate."),
    ],
)
def test_invalid_formats_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as rejected:
        BlockFormat(**options)  # type: ignore[arg-type]
    assert str(rejected.value) == message
