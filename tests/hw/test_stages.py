from math import inf

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
from adagp.hw.stages import traffic

CONV = Convolution("c", 16, 32, (3, 3), (8, 8), (8, 8))
BIG = Linear("l", 1, 4096, 4096)
SCORES = Attention("a", 4, 10, 16, 12)


def test_each_matrix_moves_once_if_the_weights_fit() -> None:
    inputs, outputs = 5 * CONV.input_words, 5 * CONV.output_words
    assert traffic(CONV, Operation.FORWARD, 1e6, 5) == (inputs + CONV.weights, outputs)
    assert traffic(CONV, Operation.INPUT_GRADIENT, 1e6, 5) == (outputs + CONV.weights, inputs)
    assert traffic(CONV, Operation.WEIGHT_GRADIENT, 1e6, 5) == (inputs + outputs, CONV.weights)


def test_weights_beyond_half_the_buffer_move_activations_again() -> None:
    # 4096 * 4096 weights are 64 parts of 262,144; 128 samples of activations are 2 such parts.
    assert traffic(BIG, Operation.FORWARD, 2 * 262_144, 128) == (128 * 4096 + 2 * BIG.weights, 128 * 4096)
    assert traffic(BIG, Operation.FORWARD, 2 * 262_144, 1) == (4096 + BIG.weights, 4096)
    assert traffic(BIG, Operation.WEIGHT_GRADIENT, 2 * 262_144, 1) == (65 * 4096, BIG.weights)


def test_groups_are_moved_one_after_the_other() -> None:
    depthwise = Convolution("d", 64, 64, (3, 3), (8, 8), (8, 8), groups=64)
    assert traffic(depthwise, Operation.FORWARD, 20, 2)[0] == 2 * depthwise.input_words + depthwise.weights


def test_both_factors_of_attention_grow_with_the_batch() -> None:
    assert traffic(SCORES, Operation.FORWARD, 1e6, 3) == (3 * 4 * (10 * 16 + 16 * 12), 3 * 4 * 10 * 12)


def test_elementwise_work_belongs_to_the_layer_before_it() -> None:
    workload = Workload("w", (Elementwise("in", "mul", 1, 1), CONV, Elementwise("relu", "relu", 7, 9), BIG))
    first, second = stages(workload, Accelerator(), 2)
    assert (first.elementwise_forward.dram_reads, first.elementwise_forward.dram_writes) == (16, 20)
    assert (first.elementwise_backward.dram_reads, first.elementwise_backward.dram_writes) == (36, 16)
    assert second.elementwise_forward.dram_words == 0


def test_passes_are_costed_by_the_dataflow() -> None:
    for dataflow in ("ws", "os", "is", "rs"):
        (stage,) = stages(Workload("w", (CONV,)), Accelerator(dataflow=dataflow), 4)
        for operation in Operation:
            expected = array_cost(dataflow, CONV.product(4).gradient(operation), Array(12, 15))
            cost = getattr(stage, operation.value)
            assert (cost.cycles, cost.macs, cost.buffer_reads) == (
                expected.cycles,
                expected.macs,
                expected.buffer_reads,
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
    words = [
        stages(Workload("w", (CONV,)), Accelerator(optimizer_words=words), 1)[0].update.dram_words
        for words in (0, 1, 2)
    ]
    assert words == [CONV.weights, 3 * CONV.weights, 5 * CONV.weights]
