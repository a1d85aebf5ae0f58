from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.hw import Accelerator, Convolution, Cost, Linear, Operation, PredictorShape, parse_predictor


def test_defaults_move_512_bits_a_cycle() -> None:
    assert Accelerator().bits_per_cycle == 512
    assert Accelerator().array.pes == 180


def test_stalls_appear_when_bandwidth_is_short() -> None:
    cost = Cost(cycles=10, dram_reads=300 * 16, dram_writes=41 * 16)
    assert Accelerator().with_stalls(cost).cycles == 11
    assert Accelerator().stall(cost) == (1, "off-chip")
    assert Accelerator(bandwidth=inf).with_stalls(cost).cycles == 10
    assert Accelerator(bandwidth=128e9).stall(cost) == (0, "")
    assert Accelerator().with_stalls(cost).dram_bits == 341 * 16


def port_stepped(cycles: int, bits: int, port: int) -> int:
    """Step an array whose every cycle needs an equal share of `bits`, which come through a port of so many bits per cycle."""
    clock = done = delivered = 0
    while done < cycles or delivered < bits:
        clock += 1
        delivered = min(bits, delivered + port)
        if done < cycles and delivered * cycles >= done * bits:
            done += 1
    return clock


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(0, 3000), st.integers(1, 90))
def test_a_port_limits_as_in_a_model_stepped_by_cycles(cycles: int, bits: int, port: int) -> None:
    accelerator = Accelerator(buffer_port=port, bandwidth=inf)
    stalled = accelerator.with_stalls(Cost(cycles=cycles, buffer_reads=bits // 2, buffer_writes=bits - bits // 2))
    assert 0 <= port_stepped(cycles, bits, port) - stalled.cycles <= 1  # the last step may wait for its share
    if stalled.cycles > cycles:
        assert accelerator.stall(Cost(cycles=cycles, buffer_reads=bits)) == (stalled.cycles - cycles, "buffer port")


def test_sums_are_at_least_32_bits_wide_unless_given() -> None:
    assert Accelerator(word_bits=8).width("sums") == 32
    assert Accelerator(sum_bits=24).width("sums") == 24
    assert Accelerator(word_bits=8, gradient_bits=16).multiplier_bits == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": -1e9}, "bandwidth is -1 gigabytes per second; it must be more than 0."),
        ({"clock_hz": 0}, "clock is 0 megahertz; it must be more than 0."),
        ({"buffer_kilobytes": -3}, "buffer is -3 kilobytes; it must be more than 0."),
        ({"buffer_port": 0}, "buffer port is 0 bits; it must be more than 0."),
        ({"buffer_kilobytes": inf}, "buffer and clock must be finite."),
        ({"accumulator_kilobytes": -1}, "accumulators are -1 kilobytes; they must be 0 or more."),
        ({"sum_bits": 0}, "sums are 0 bits wide; it must be 1 to 64."),
        ({"weight_bits": 200}, "weights are 200 bits wide; it must be 1 to 64."),
        ({"backward": "same"}, "unknown backward pass 'same'. Choose from: in-place, same-dataflow."),
        ({"optimizer_words": -1}, "optimizer_words is -1; it must be 0 or more."),
        ({"word_bits": 12}, "word width 12 is not in the energy table; choose from [8, 16, 32] bits."),
        ({"dataflow": "row"}, "unknown dataflow 'row'. Choose from: is, os, rs, ws."),
    ],
)
def test_rejects_impossible_hardware(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        Accelerator(**options)
    assert str(raised.value) == message


LAYER = Convolution("c", 16, 32, (3, 3), (8, 8), (8, 8))


def test_products_are_those_of_the_predictor_network() -> None:
    convolution, connected = PredictorShape().products(LAYER)
    assert (convolution.rows, convolution.depth, convolution.columns) == (32 * 16, 9, 4)
    assert (connected.rows, connected.depth, connected.columns) == (32, 64, 144)
    assert PredictorShape().weights(LAYER) == 36 + 64 * 144


def test_groups_make_the_rows_of_a_gradient_shorter() -> None:
    grouped = Convolution("c", 16, 32, (3, 3), (8, 8), (8, 8), groups=16)
    assert PredictorShape().products(grouped)[1].columns == 9


def test_training_has_no_input_gradient_of_the_first_layer() -> None:
    operations = [product.operation for product in PredictorShape().training(Linear("l", 1, 100, 10))]
    assert operations == [Operation.INPUT_GRADIENT, Operation.WEIGHT_GRADIENT, Operation.WEIGHT_GRADIENT]


def test_shape_can_differ() -> None:
    assert PredictorShape(grid=2, channels=3).features == 12
    with pytest.raises(OptionError) as raised:
        PredictorShape(grid=0)
    assert str(raised.value) == "a predictor of grid 0 and 4 channels is not allowed: both must be at least 1."


def test_a_predictor_is_read_from_text() -> None:
    assert parse_predictor("8x3") == PredictorShape(8, 3)
    assert str(PredictorShape(8, 3)) == "8x3"
    with pytest.raises(OptionError) as raised:
        parse_predictor("8")
    assert str(raised.value) == "cannot read the predictor '8'; write GRIDxCHANNELS, for example 4x4."
    with pytest.raises(OptionError) as raised:
        parse_predictor("9000x9")
    assert str(raised.value) == (
        "a predictor of grid 9000 and 9 channels has 729,000,000 features; at most 1,048,576 are allowed."
    )
