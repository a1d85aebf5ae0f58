from dataclasses import replace
from math import inf

import pytest
from tests.hw.small_workload import ACCELERATOR, LAYERS, small_stages

from adagp.core.methods import METHODS, AcceleratorWork, Method
from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.errors import OptionError
from adagp.hw import (
    Accelerator,
    Array,
    Attention,
    Convolution,
    Elementwise,
    Linear,
    Operation,
    Predictions,
    SiteWork,
    Stage,
    Workload,
    array_cost,
    stages,
)
from adagp.hw.product import Cost
from adagp.hw.stages import duties
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


def test_a_buffer_that_holds_no_tile_is_rejected() -> None:
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


@pytest.fixture(scope="module")
def found() -> tuple[Stage, ...]:
    return small_stages()


def cycles(costs: list[Cost]) -> list[int]:
    return [cost.cycles for cost in costs]


def test_backprop_runs_everything_but_the_stems_input_gradient(found: tuple[Stage, ...]) -> None:
    batch = duties(found, BACKPROP_ALL, ACCELERATOR, predictor_learns=True)
    both = [stage.input_gradient + stage.weight_gradient for stage in found]
    both[0] = found[0].weight_gradient
    assert cycles([duty.backward for duty in batch]) == cycles(both)
    assert [duty.learns for duty in batch] == [True, True, False, True]
    assert [duty.predicts for duty in batch] == [True, True, False, True]


def test_prediction_runs_forward_only(found: tuple[Stage, ...]) -> None:
    batch = duties(found, Plan(Phase.GP, default="predicted", hold_rest=True), ACCELERATOR, predictor_learns=True)
    assert cycles([duty.forward for duty in batch]) == cycles([stage.forward for stage in found])
    assert all(duty.backward == Cost() for duty in batch)
    assert [duty.predicts for duty in batch] == [True, True, False, True]
    assert not any(duty.learns for duty in batch)
    assert [duty.forward.dram_writes - stage.forward.dram_writes for duty, stage in zip(batch, found, strict=True)] == [
        stage.update.dram_writes for stage in found
    ]


def test_a_partial_backward_pass_stops_at_the_lowest_true_site(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.GP, default="predicted", by_site={"middle": "backprop", "head": "backprop"}, hold_rest=True)
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    assert batch[0].backward.cycles == 0
    assert batch[1].backward.cycles == found[1].weight_gradient.cycles
    assert batch[2].backward.cycles == found[2].input_gradient.cycles + found[2].weight_gradient.cycles
    assert batch[3].backward.cycles == found[3].input_gradient.cycles + found[3].weight_gradient.cycles
    assert [duty.predicts for duty in batch] == [True, False, False, False]


def test_a_plan_that_holds_what_lies_below_a_cut_stops_there_too(found: tuple[Stage, ...]) -> None:
    below = {"stem": "zero", "middle": "zero"}
    cut = Plan(Phase.GP, by_site=below, frozen=frozenset(below))
    batch = duties(found, cut, ACCELERATOR, predictor_learns=False)
    assert cycles([duty.backward for duty in batch]) == [0, 0, 0, found[3].weight_gradient.cycles]
    whole = duties(found, Plan(Phase.GP, by_site=below), ACCELERATOR, predictor_learns=False)
    assert whole[1].backward.cycles == found[1].input_gradient.cycles


def test_parameters_outside_of_sites_keep_the_chain_going(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.BP, by_site={"middle": "zero"})
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    assert batch[1].backward.cycles == found[1].input_gradient.cycles
    assert batch[0].backward.cycles == found[0].weight_gradient.cycles


@pytest.mark.parametrize("source", ["zero", "random", "noise", "momentum"])
def test_supplied_gradients_cost_no_weight_gradient(found: tuple[Stage, ...], source: str) -> None:
    plan = Plan(Phase.GP, default=source, hold_rest=True)
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    assert all(duty.backward.cycles == 0 and not duty.predicts for duty in batch)


@pytest.mark.parametrize(("source", "gradients"), [("replay", 1), ("average", 4)])
def test_remembered_gradients_are_read_from_memory(found: tuple[Stage, ...], source: str, gradients: int) -> None:
    remembering, supplied = (
        duties(found, Plan(Phase.GP, default=name, hold_rest=True), ACCELERATOR, False) for name in (source, "zero")
    )
    more = remembering[1].forward.dram_reads - supplied[1].forward.dram_reads
    assert more == gradients * 16 * LAYERS[1].weights
    assert remembering[1].backward == Cost()


def test_a_gradient_that_was_computed_is_read_back_by_the_update(found: tuple[Stage, ...]) -> None:
    batch = duties(found, BACKPROP_ALL, ACCELERATOR, False)
    passes = found[1].input_gradient + found[1].weight_gradient + found[1].update
    assert batch[1].backward.dram_reads - passes.dram_reads == 2 * 16 * LAYERS[1].weights


def test_a_skipped_batch_costs_nothing(found: tuple[Stage, ...]) -> None:
    batch = duties(found, Plan(Phase.GP, default="skip", hold_rest=True), ACCELERATOR, predictor_learns=True)
    assert all(duty.forward == Cost() and duty.backward == Cost() for duty in batch)


def doubled_gradient(site: SiteWork) -> Cost:
    return site.accelerator.tiled_cost(site.layer.product(2 * site.batch))


def small_predictions(site: SiteWork) -> Predictions | None:
    return (
        Predictions(Cost(5), Cost(site.variant if isinstance(site.variant, int) else 7)) if site.layer.weights else None
    )


def test_a_method_brings_cost_functions_of_its_own(found: tuple[Stage, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    work = AcceleratorWork(f"{__name__}:doubled_gradient", predictions=f"{__name__}:small_predictions")
    method = Method("outside", "a plug-in", "package.module:Class", accelerator=work)
    monkeypatch.setitem(METHODS._things, "outside", method)
    served = duties(found, Plan(Phase.GP, default="outside", hold_rest=True), ACCELERATOR, True, "outside")
    assert served[1].backward.macs == 2 * found[1].forward.macs
    assert [duty.predicts for duty in served] == [True, True, False, True]
    learning = duties(found, BACKPROP_ALL, ACCELERATOR, True, "outside", variant=11)
    assert [duty.learns for duty in learning] == [True, True, False, True]
    assert learning[1].predictions == Predictions(Cost(5), Cost(11))


HEADS = Attention("scores", 4, 10, 16, 10), Attention("use", 4, 10, 10, 16)
SOFTMAX = Elementwise("softmax", "_softmax", 400, 400)


def test_fused_attention_keeps_the_scores_on_chip_and_computes_them_twice() -> None:
    model = Workload("w", (HEADS[0], SOFTMAX, HEADS[1]))
    plain, fused = (stages(model, Accelerator(fused_attention=fused), 2) for fused in (False, True))
    # Scores: written, read and written by the softmax, read by their use; on the way back the use's gradient is written and
    # read, the softmax reads three matrices and writes one, and both products of the scores read its gradient.
    bits = 2 * 400 * 16
    forward = sum(stage.forward.dram_bits + stage.elementwise_forward.dram_bits for stage in plain)
    assert sum(stage.forward.dram_bits + stage.elementwise_forward.dram_bits for stage in fused) == forward - 4 * bits

    def backward(chain: tuple[Stage, ...]) -> int:
        costs = (stage.input_gradient + stage.weight_gradient + stage.elementwise_backward for stage in chain)
        return sum(cost.dram_bits for cost in costs)

    again = 2 * 2 * 4 * 10 * 16 * 16  # queries and keys are read once more
    softmax = plain[0].elementwise_backward.dram_bits
    assert backward(fused) == backward(plain) - softmax - 4 * bits + again
    assert fused[0].input_gradient.macs == 2 * plain[0].input_gradient.macs
    assert [stage.forward.cycles for stage in fused] == [stage.forward.cycles for stage in plain]


def test_fused_attention_needs_an_attention() -> None:
    with pytest.raises(OptionError) as raised:
        stages(Workload("w", (CONV,)), Accelerator(fused_attention=True), 2)
    assert str(raised.value) == "'w' has no attention that could be fused; leave fused attention out."


def test_a_vector_unit_takes_cycles_after_its_layer() -> None:
    model = Workload("w", (HEADS[0], SOFTMAX, HEADS[1]))
    free, slow = (stages(model, Accelerator(vector_lanes=lanes), 2) for lanes in (inf, 7))
    assert [stage.elementwise_forward.cycles for stage in free] == [0, 0]
    assert [stage.elementwise_forward.cycles for stage in slow] == [-(-2 * 3 * 400 // 7), 0]
    assert [stage.elementwise_backward.cycles for stage in slow] == [-(-2 * 2 * 400 // 7), 0]
    assert free[0].elementwise_forward.dram_bits == slow[0].elementwise_forward.dram_bits


def test_a_table_is_updated_once_in_a_batch_by_backprop_and_not_in_phase_gp() -> None:
    table = Elementwise("table", "embedding", 5, 5 * 64, 1000 * 64)
    model = Workload("w", (table, Linear("head", 5, 64, 10)))
    accelerator = Accelerator(optimizer_words=2)
    (stage,) = stages(model, accelerator, 4)
    # The gradient is written; gradient, weights and two words of state are read; weights and state written.
    assert stage.table_update.dram_bits == (1 + 4 + 3) * 64_000 * 16
    plans = BACKPROP_ALL, Plan(Phase.GP, default="(supplied)", hold_rest=True)
    bp, gp = (duties([stage], plan, accelerator, False)[0] for plan in plans)
    alone = duties([replace(stage, table_update=Cost())], BACKPROP_ALL, accelerator, False)[0]
    assert bp.backward.dram_bits - alone.backward.dram_bits == stage.table_update.dram_bits
    assert gp.backward == Cost()
    assert gp.forward.dram_bits == (stage.forward + stage.elementwise_forward + stage.update).dram_bits


def test_an_optimizer_in_higher_precision() -> None:
    def moved(**options: int) -> tuple[int, int]:
        (stage,) = stages(Workload("w", (BIG,)), Accelerator(optimizer_words=2, **options), 1)  # type: ignore[arg-type]
        return stage.update.dram_bits // BIG.weights, stage.read_back.dram_bits // BIG.weights

    assert moved() == (2 * 2 * 16 + 16, 32)
    assert moved(state_bits=32) == (2 * 2 * 32 + 16, 32)
    assert moved(state_bits=32, master_bits=32) == (2 * 2 * 32 + 2 * 32 + 16, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"optimizer_words": 0, "state_bits": 32},
            "the optimizer has no state, so the width of its state has no effect; leave it out.",
        ),
        ({"master_bits": 16}, "a copy of the weights in 16 bits has no effect: the weights have 16."),
        ({"state_bits": 65}, "the optimizer's state is 65 bits wide; it must be 1 to 64."),
        ({"vector_lanes": 0}, "vector unit is 0 lanes; it must be more than 0."),
    ],
)
def test_options_of_the_optimizer_that_cannot_be(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        Accelerator(**options)  # type: ignore[arg-type]
    assert str(raised.value) == message
