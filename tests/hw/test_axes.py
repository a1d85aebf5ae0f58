import pytest

from adagp.errors import OptionError
from adagp.hw import Array
from adagp.hw.axes import AXES, MOST_POINTS, parse_axes


@pytest.mark.parametrize(
    ("axis", "text", "values"),
    [
        ("array", "12x15", [Array(12, 15)]),
        ("array", "8x8..16x16", [Array(8, 8), Array(8, 16), Array(16, 8), Array(16, 16)]),
        ("array", "8x4..16x4:+4, 1x1", [Array(8, 4), Array(12, 4), Array(16, 4), Array(1, 1)]),
        ("buffer", "64k..512k", [64, 128, 256, 512]),
        ("buffer", "1M,512k,512", [1024, 512]),
        ("buffer", "100k..500k", [100, 200, 400]),
        ("buffer", "1M..4M", [1024, 2048, 4096]),
        ("batch", "8..32:+8", [8, 16, 24, 32]),
        ("bandwidth", "0.5..2", [0.5e9, 1e9, 2e9]),
        ("clock", "200", [200e6]),
        ("word_bits", "8..32", [8, 16, 32]),
        ("dataflow", "ws, rs", ["ws", "rs"]),
        ("design", "all", ["baseline", "low", "efficient", "max"]),
        ("design", "max,equal-area", ["max", "equal-area"]),
    ],
)
def test_lists_and_ranges(axis: str, text: str, values: list[object]) -> None:
    assert parse_axes({axis: text}) == {axis: values}


@pytest.mark.parametrize(
    ("axis", "text", "message"),
    [
        ("array", "8x8..4x16", "--array 8..4 runs backwards; write the smaller value first."),
        ("array", "0x8", "--array 0 is not allowed; it must be from 1 to 4,096 PEs a side."),
        ("array", "8x99999", "--array 99999 is not allowed; it must be from 1 to 4,096 PEs a side."),
        ("array", "8", "--array: cannot read '8'; write ROWSxCOLUMNS, for example 8x8..64x64."),
        ("array", "1x1..4096x4096:+1", "--array 1x1..4096x4096:+1 has 16,777,216 points; at most 100,000 are allowed. "
         "Narrow a range or widen a step."),
        ("buffer", "4M..64k", "--buffer 4M..64k runs backwards; write the smaller value first."),
        ("buffer", "0k", "--buffer 0k is not allowed; it must be from 1 to 1,048,576 kilobytes."),
        ("buffer", "64q", "--buffer: cannot read '64q'; write kilobytes, for example 64k or 4M."),
        ("buffer", "1..2..3", "--buffer: cannot read '1..2..3'; write a value, a range A..B that doubles, or A..B:+STEP."),
        ("buffer", ",", "--buffer is empty; give at least one value."),
        ("batch", "1..8:+0", "--batch-size 1..8:+0 never ends; the step must be more than 0."),
        ("batch", "1..8:*2", "--batch-size: cannot read '1..8:*2'; write a range A..B:+STEP."),
        ("batch", "1.5", "--batch-size: cannot read '1.5'; write a whole number."),
        ("batch", "1..1000000:+1", "--batch-size 1..1000000:+1 has 1,000,000 points; at most 100,000 are allowed. "
         "Narrow a range or widen a step."),
        ("bandwidth", "fast", "--bandwidth: cannot read 'fast'; write a number."),
        ("dataflow", "wss", "unknown dataflow 'wss'. Did you mean 'ws'? Choose from: is, os, rs, ws."),
        ("design", "huge", "unknown design 'huge'. Choose from: baseline, dense-16, dense-32, efficient, equal-area, "
         "equal-power, fast, low, max, max-ideal."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_rejected(axis: str, text: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_axes({axis: text})
    assert str(raised.value) == message


def test_a_space_of_too_many_points_is_rejected() -> None:
    with pytest.raises(OptionError) as raised:
        parse_axes({"array": "8x8..64x64:+1", "buffer": "64k..4M:+64", "batch": None})
    assert str(raised.value) == (
        f"the design space has 207,936 points; at most {MOST_POINTS:,} are allowed. Narrow a range or widen a step."
    )


def test_the_defaults_can_be_read() -> None:
    assert {axis.name for axis in AXES if axis.default} == set(parse_axes({axis.name: axis.default for axis in AXES}))
