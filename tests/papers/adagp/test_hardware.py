import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import BACKPROP_ALL, predicted_plan
from adagp.errors import OptionError
from adagp.hw import DESIGNS, Accelerator, Array, Convolution, Linear, Run, Stage, Workload, simulate
from adagp.hw.product import Cost, total
from adagp.hw.stages import Duty, Predictions
from adagp.papers.adagp.hardware import equal_pes, overlapped

STEP, ALPHA = 1000, 70
"""The paper's units: a layer's forward pass, and the predictor's."""


def uniform(phase: str) -> list[Duty]:
    """Return four layers as in the paper's timelines: forward 1, backward 2, predictor alpha and 2 alpha."""
    work = Predictions(Cost(ALPHA), Cost(2 * ALPHA), Cost(ALPHA), Cost(2 * ALPHA), Cost(3), Cost(4), Cost(5))
    stage = Stage(Linear("l", 1, 1, 1), Cost(STEP), Cost(STEP), Cost(STEP), predictions=work)
    backward = Cost() if phase == "gp" else Cost(2 * STEP)
    return [Duty(stage, Cost(STEP), backward, True, phase == "bp", work)] * 4


def cycles(design: str, phase: str) -> int:
    return total(DESIGNS[design].step(uniform(phase), Accelerator())).cycles


def test_the_papers_four_layers_take_its_steps() -> None:
    assert cycles("baseline", "bp") == 12 * STEP
    assert cycles("efficient", "bp") == 12 * STEP + 12 * ALPHA
    assert cycles("efficient", "gp") == 4 * STEP + 4 * ALPHA


def test_low_also_loads_and_stores() -> None:
    assert cycles("low", "gp") == 4 * (STEP + ALPHA + 3 + 4)
    assert cycles("low", "bp") == 4 * (3 * STEP + 3 * ALPHA + 3 + 4 + 3 + 5)


def test_max_hides_the_predictor_but_for_the_last_layers_prediction() -> None:
    assert cycles("max", "gp") == 4 * STEP + ALPHA
    assert cycles("max", "bp") == 12 * STEP + ALPHA


def test_max_of_the_text_takes_the_larger_of_both_in_every_step() -> None:
    assert cycles("max-ideal", "gp") == 4 * STEP + ALPHA
    assert cycles("max-ideal", "bp") == 12 * STEP + ALPHA


costs = st.integers(0, 1000).map(Cost)


@given(costs, costs, costs)
def test_max_is_never_slower_than_efficient_and_takes_the_longer_of_the_two(layer: Cost, main: Cost, own: Cost) -> None:
    both = overlapped(Accelerator(), layer, main, own).cycles
    assert both == min(max(layer.cycles, own.cycles), layer.cycles + main.cycles)


def test_own_memory_takes_the_buffers_accesses() -> None:
    cost = Cost(1, 2, 3, 4, 5, 6, registers=7)
    moved = Cost(1, 2, 0, 0, 5, 6, 3, 4, 7)
    assert Predictions(cost, cost).from_own_memory.forward == moved
    assert Predictions(cost, cost, cost, cost).from_own_memory == Predictions(moved, moved, moved, moved)
    assert Predictions(cost, cost, own_memory=False).from_own_memory.forward == cost


traffic = st.builds(Cost, st.integers(0, 1000), dram_reads=st.integers(0, 10**6), dram_writes=st.integers(0, 10**6))


@given(traffic, traffic, traffic)
def test_max_moves_no_more_than_the_pins_carry(layer: Cost, main: Cost, own: Cost) -> None:
    accelerator = Accelerator()
    both = overlapped(accelerator, *(accelerator.with_stalls(cost) for cost in (layer, main, own)))
    assert both.dram_bits <= both.cycles * accelerator.bits_per_cycle


def test_a_bandwidth_bound_run_of_max_keeps_within_the_bandwidth() -> None:
    layers = (Convolution("wide", 64, 64, (1, 1), (4, 4), (4, 4)), Linear("head", 1, 1024, 10))
    fast = Accelerator(Array(64, 64), predictor_array=Array(32, 32), clock_hz=1e9)
    run = Run(8, ((BACKPROP_ALL, 1), (predicted_plan("adagp"), 1)), True)
    for costs, _ in simulate(Workload("w", layers), fast, run, ["max"]).outcomes["max"].batches:
        assert all(cost.dram_bits <= cost.cycles * fast.bits_per_cycle for cost in costs)


def test_unknown_design_names_the_options() -> None:
    with pytest.raises(OptionError) as raised:
        DESIGNS["maximum"]
    assert str(raised.value) == (
        "unknown design 'maximum'. Did you mean 'max'? Choose from: baseline, dense-16, dense-32, efficient, equal-area, "
        "equal-power, fast, low, max, max-ideal."
    )


def test_pes_of_equal_power_and_area() -> None:
    assert equal_pes({"baseline": 100.0, "low": 110.0, "max": 150.0}, 10, 5.0) == 2.0
    assert equal_pes({"baseline": 100.0}, 10, 5.0) is None
    accelerator = Accelerator(equal_area_pes=1.5)
    assert (DESIGNS["equal-area"].array_factor(accelerator), DESIGNS["max"].array_factor(accelerator)) == (1.5, 1.0)
    with pytest.raises(OptionError, match=r"^equal_power_pes is 0.9; it must be 1 to 4.$"):
        Accelerator(equal_power_pes=0.9)
