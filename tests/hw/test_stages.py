from math import inf

import pytest

from adagp.errors import OptionError
from adagp.hw import (
    Accelerator,
    Array,
    Attention,
    Convolution,
    Elementwise,
    Linear,
    Operation,
    Workload,
    array_cost,
    stages,
)
from adagp.hw.workload import ArrayLayer

CONV = Convolution("c", 16, 32, (3, 3), (8, 8), (8, 8))
BIG = Linear("l", 1, 4096, 4096)
SCORES = Attention("a", 4, 10, 16, 12)


def words(layer: ArrayLayer, batch: int, **options: float) -> list[tuple[int, int]]:
    """Return the off-chip words that each pass reads and writes."""
    (stage,) = stages(Workload("w", (layer,)), Accelerator(**options), batch)  # type: ignore[arg-type]
    passes = (stage.forward, stage.input_gradient, stage.weight_gradient)
    return [(cost.dram_reads // 16, cost.dram_writes // 16) for cost in passes]


def test_each_matrix_moves_once_if_it_fits() -> None:
    inputs, outputs = 5 * CONV.input_words, 5 * CONV.output_words
    assert words(CONV, 5) == [
        (inputs + CONV.weights, outputs),
        (outputs + CONV.weights, inputs),
        (inputs + outputs, CONV.weights),
    ]


def test_a_matrix_beyond_the_buffer_moves_the_cheaper_one_again() -> None:
    moved = sum(words(BIG, 128)[0])
    once = 2 * 128 * 4096 + BIG.weights
    # A tile of all 128 rows leaves room for a few columns of weights: the inputs move again for each of those.
    assert once < moved < once + 64 * 128 * 4096
    assert sum(words(BIG, 128, buffer_kilobytes=65536)[0]) == once


def test_groups_are_moved_one_after_the_other() -> None:
    depthwise = Convolution("d", 64, 64, (3, 3), (8, 8), (8, 8), groups=64)
    assert words(depthwise, 2, buffer_kilobytes=8)[0] == (2 * depthwise.input_words + depthwise.weights, 2 * 64 * 64)


def test_a_strided_convolution_of_one_by_one_reads_what_it_needs() -> None:
    shortcut = Convolution("s", 16, 32, (1, 1), (8, 8), (4, 4), (2, 2))
    assert words(shortcut, 3)[0] == (3 * 16 * 16 + 512, 3 * 32 * 16)


def test_both_factors_of_attention_grow_with_the_batch() -> None:
    assert words(SCORES, 3)[0] == (3 * 4 * (10 * 16 + 16 * 12), 3 * 4 * 10 * 12)


def test_what_moves_off_chip_passes_through_the_buffer() -> None:
    (stage,) = stages(Workload("w", (CONV,)), Accelerator(), 4)
    alone = array_cost("ws", CONV.product(4), Array(12, 15))
    assert stage.forward.buffer_writes == alone.buffer_writes + stage.forward.dram_reads
    assert stage.forward.buffer_reads == alone.buffer_reads + stage.forward.dram_writes


def test_words_have_the_widths_that_they_are_given() -> None:
    accelerator = Accelerator(weight_bits=8, activation_bits=4, gradient_bits=16, word_bits=16)
    (stage,) = stages(Workload("w", (CONV,)), accelerator, 5)
    inputs, outputs, weights = 5 * CONV.input_words, 5 * CONV.output_words, CONV.weights
    assert (stage.forward.dram_reads, stage.forward.dram_writes) == (4 * inputs + 8 * weights, 4 * outputs)
    assert (stage.input_gradient.dram_reads, stage.input_gradient.dram_writes) == (
        16 * outputs + 8 * weights,
        16 * inputs,
    )
    assert (stage.weight_gradient.dram_reads, stage.weight_gradient.dram_writes) == (
        4 * inputs + 16 * outputs,
        16 * weights,
    )


def test_elementwise_work_belongs_to_the_layer_before_it() -> None:
    workload = Workload("w", (Elementwise("in", "mul", 1, 1), CONV, Elementwise("relu", "relu", 7, 9), BIG))
    first, second = stages(workload, Accelerator(fusion=False), 2)
    assert (first.elementwise_forward.dram_reads, first.elementwise_forward.dram_writes) == (16 * 16, 20 * 16)
    assert (first.elementwise_backward.dram_reads, first.elementwise_backward.dram_writes) == (36 * 16, 16 * 16)
    assert second.elementwise_forward.dram_bits == 0


def test_passes_are_costed_by_the_dataflow() -> None:
    for dataflow in ("ws", "os", "is", "rs"):
        (stage,) = stages(Workload("w", (CONV,)), Accelerator(dataflow=dataflow), 4)
        for operation in Operation:
            expected = array_cost(dataflow, CONV.product(4).gradient(operation), Array(12, 15))
            cost = getattr(stage, operation.value)
            assert (cost.cycles, cost.macs, cost.registers) == (expected.cycles, expected.macs, expected.registers)


def test_a_buffer_that_holds_no_tile_is_refused() -> None:
    with pytest.raises(OptionError) as raised:
        stages(Workload("w", (CONV,)), Accelerator(buffer_kilobytes=0.05), 4)
    assert str(raised.value) == (
        "a global buffer of 0.05 kB cannot hold two tiles, however small, of a product of 256 x 144 by 144 x 32; "
        "make it larger."
    )


def test_the_predictor_costs_the_same_dataflow_on_both_arrays() -> None:
    accelerator = Accelerator(bandwidth=inf)
    (stage,) = stages(Workload("w", (CONV,)), accelerator, 4)
    assert stage.predictions is not None
    for cost, array in (
        (stage.predictions.forward, accelerator.array),
        (stage.predictions.forward_own, accelerator.predictor_array),
    ):
        assert cost.cycles == sum(
            array_cost("ws", product, array).cycles for product in accelerator.predictor.products(CONV)
        )
    assert stage.predictions.training.macs == stage.predictions.forward.macs + 32 * 64 * 144


def test_only_trained_layers_are_sites() -> None:
    frozen = Linear("f", 1, 10, 10, trainable=False)
    found = stages(Workload("w", (CONV, frozen, SCORES)), Accelerator(), 1)
    assert [stage.is_site for stage in found] == [True, False, False]
    assert [stage.predictions is None for stage in found] == [False, True, True]
    assert [list(map(bool, (cost.cycles for cost in stage.needed_passes.values()))) for stage in found] == [
        [True, True, True],
        [True, True, False],
        [True, True, True],
    ]


def test_optimizer_state_moves_with_the_update() -> None:
    updates = [stages(Workload("w", (CONV,)), Accelerator(optimizer_words=state), 1)[0] for state in (0, 1, 2)]
    assert [stage.update.dram_bits for stage in updates] == [16 * times * CONV.weights for times in (1, 3, 5)]
    assert updates[0].read_back.dram_reads == 2 * 16 * CONV.weights  # the weights, and the gradient that was written
