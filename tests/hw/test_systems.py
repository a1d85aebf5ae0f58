"""Training systems: sparse arrays against dense ones, reversible branches, runs epoch by epoch."""

from dataclasses import replace

import pytest

from adagp.errors import ModelError
from adagp.hw.systems import EpochRecord, LayerRecord, PassCost, SystemOptions, run_on_system
from adagp.hw.workload import Attention, Convolution, Linear, Workload
from adagp.papers.procrustes.hardware import SIDE, LayerShape, training_cost

CONV = Convolution("conv", 32, 64, (3, 3), (16, 16), (16, 16))
NET = Workload("net", (replace(CONV, name="first", input_gradient=False), CONV, Linear("fc", 1, 64, 10)))


def branch(channels: int = 12, pixels: int = 7) -> Workload:
    side = (pixels, pixels)
    layers = [
        Convolution(f"chain.blocks.0.{name}.layer", channels, channels, (3, 3), side, side)
        for name in ("first", "second")
    ]
    frozen = Convolution("backbone", 3, 8, (3, 3), side, side, trainable=False, input_gradient=False)
    return Workload("duplex", (frozen, *layers))


def records(workload: Workload, weight: float, inputs: float) -> dict[str, LayerRecord]:
    return {layer.name: LayerRecord(weight, inputs) for layer in workload.array_layers}


def test_all_weights_and_inputs_are_exactly_the_dense_array() -> None:
    cost = training_cost(NET, 32, {})
    assert cost.notes["speed-up over dense on the same array"] == 1.0
    assert cost.notes["energy of dense over ours"] == pytest.approx(1.0)
    shape = LayerShape(CONV, 32)
    assert shape.dense_cycles(shape.c, shape.n) == 2 * 2 * 64 * 9 * 256 == shape.macs / SIDE**2
    passes = 3 * shape.macs + 2 * LayerShape(NET.array_layers[0], 32).macs
    fc = LayerShape(NET.array_layers[2], 32)
    assert cost.batch().cycles == passes / SIDE**2 + sum(
        fc.dense_cycles(*sides) for sides in ((fc.c, fc.n), (fc.k, fc.n), (fc.n, fc.k))
    )


@pytest.mark.parametrize(("weight", "inputs"), [(0.1, 0.5), (0.2, 0.5), (0.1, 1.0)])
def test_a_sparse_array_gains_at_most_the_ideal(weight: float, inputs: float) -> None:
    workload = Workload("net", (CONV,))
    cost = training_cost(workload, 32, records(workload, weight, inputs))
    ideal = 3 / (2 * weight + inputs)
    assert 0.7 * ideal < float(cost.notes["speed-up over dense on the same array"]) <= ideal + 1e-6
    assert 1 < float(cost.notes["energy of dense over ours"]) < ideal
    assert float(cost.notes["cycles over ideal ones"]) >= 1


def test_attention_is_dense_and_depthwise_layers_use_their_channels() -> None:
    attention = Workload("net", (Attention("attention", 4, 16, 8, 16),))
    assert training_cost(attention, 2, records(attention, 0.1, 0.1)).notes["speed-up over dense on the same array"] == 1
    depthwise = LayerShape(replace(CONV, out_channels=32, groups=32), 32)
    assert depthwise.dense_cycles(depthwise.c, depthwise.n) == depthwise.macs / SIDE**2


def test_a_run_is_the_sum_of_its_epochs_and_ends_at_the_target() -> None:
    dense, sparse = records(NET, 1.0, 1.0), records(NET, 0.1, 0.5)
    epochs = [
        EpochRecord(10, 0, dense),
        EpochRecord(6, 4, sparse, reached=True),
        EpochRecord(10, 0, sparse, reached=True),
    ]
    found = run_on_system("procrustes", NET, 32, epochs, SystemOptions())
    one, other = (training_cost(NET, 32, layers) for layers in (dense, sparse))
    reached = one.batch() * 10 + other.batch() * 6 + other.batch(predicted=True) * 4
    assert found.to_target == reached
    assert found.total.cycles == pytest.approx((reached + other.batch() * 10).cycles)
    assert run_on_system("procrustes", NET, 32, epochs[:1], SystemOptions()).to_target is None


def test_camel_needs_no_refresh_where_data_live_short() -> None:
    free, refreshed = (
        run_on_system("camel", branch(pixels=pixels), 64, [EpochRecord(1)], SystemOptions()) for pixels in (7, 8)
    )
    assert (free.batch.notes["refreshes of a datum"], refreshed.batch.notes["refreshes of a datum"]) == (0, 1)
    assert free.batch.notes["T_b, microseconds"] == pytest.approx(3.12)
    longer = run_on_system("camel", branch(pixels=8), 64, [EpochRecord(1)], SystemOptions(retention=45.0))
    assert longer.total.cycles == refreshed.total.cycles
    assert longer.total.joules < refreshed.total.joules
    sram = run_on_system("camel-sram", branch(pixels=7), 64, [EpochRecord(1)], SystemOptions())
    assert sram.total.cycles > free.total.cycles
    assert sram.batch.notes["refreshes of a datum"] == 0


def test_a_reversible_branch_runs_four_units_of_work_and_the_backbone_one() -> None:
    cost = run_on_system("camel", branch(), 1, [EpochRecord(1)], SystemOptions()).batch
    alone = Workload("branch", branch().layers[1:])
    unit = run_on_system("camel", alone, 1, [EpochRecord(1)], SystemOptions()).batch.passes["forward"].cycles
    backbone = cost.passes["forward"].cycles - unit
    assert cost.batch().cycles == 4 * unit + backbone
    together = run_on_system("camel", branch(), 64, [EpochRecord(1)], SystemOptions(micro_batch=8)).batch
    assert together.batch().cycles < 64 * cost.batch().cycles
    assert float(together.notes["T_b, microseconds"]) > 3.12


def test_camel_is_for_reversible_models() -> None:
    with pytest.raises(ModelError, match=r"^CAMEL's designs are for models with reversible blocks, such as duplex"):
        run_on_system("camel", NET, 1, [EpochRecord(1)], SystemOptions())


def test_costs_add_up() -> None:
    assert PassCost(1, 2) + PassCost(3, 4) * 2 == PassCost(7, 10)
