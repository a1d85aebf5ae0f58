from math import inf
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.hw import Accelerator, Cost


def test_defaults_move_32_words_a_cycle() -> None:
    assert Accelerator().words_per_cycle == 32
    assert Accelerator().array.pes == 180


def test_stalls_appear_when_bandwidth_is_short() -> None:
    cost = Cost(cycles=10, dram_reads=300, dram_writes=41)
    assert Accelerator().with_stalls(cost).cycles == 11
    assert Accelerator(bandwidth=inf).with_stalls(cost).cycles == 10
    assert Accelerator(bandwidth=128e9).with_stalls(cost).cycles == 10
    assert Accelerator().with_stalls(cost).dram_words == 341


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": -1e9}, "bandwidth is -1 gigabytes a second; it must be more than 0."),
        ({"clock_hz": 0}, "clock is 0 megahertz; it must be more than 0."),
        ({"buffer_kilobytes": -3}, "buffer is -3 kilobytes; it must be more than 0."),
        ({"optimizer_words": -1}, "optimizer_words is -1; it must be 0 or more."),
        ({"word_bits": 12}, "word width 12 is not in the energy table; choose from [8, 16, 32] bits."),
        ({"dataflow": "row"}, "unknown dataflow 'row'. Choose from: is, os, rs, ws."),
    ],
)
def test_refuses_impossible_hardware(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        Accelerator(**options)
    assert str(raised.value) == message
