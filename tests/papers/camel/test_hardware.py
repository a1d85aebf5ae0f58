"""Lifetimes of data: the event simulation against the closed form, memory that forgets, refreshes."""

import pytest
from tests.papers.camel.lifetime_events import Event, ForgettingMemory, simulated_lifetimes

from adagp.errors import ModelError
from adagp.hw.systems import EpochRecord, SystemOptions, run_on_system
from adagp.hw.workload import Convolution, Linear, Workload
from adagp.papers.camel.hardware import (
    ACCESS,
    CAMEL,
    CLOCK_HZ,
    LEAKAGE,
    OnChipMemory,
    lifetimes,
    product_cycles,
    published_shape,
    refreshes,
)


@pytest.mark.parametrize("blocks", [1, 2, 6, 24])
@pytest.mark.parametrize("time", [1.0, 0.37])
def test_the_closed_form_is_that_of_the_events(blocks: int, time: float) -> None:
    assert simulated_lifetimes(blocks, time) == pytest.approx(lifetimes(time))
    assert lifetimes(time) == (2 * time, 6 * time)


def test_a_datum_that_is_read_too_late_is_never_read_silently() -> None:
    assert simulated_lifetimes(6, 1.0, retention=6.0) == (2.0, 6.0)
    with pytest.raises(ModelError, match=r"^'.*' is read 6 after its writing; memory keeps it for 5\.9\.$"):
        simulated_lifetimes(6, 1.0, retention=5.9)
    memory = ForgettingMemory(1.0)
    memory.do(Event(0.0, "x", True))
    memory.do(Event(1.5, "x", True))  # written again: its lifetime starts again
    memory.do(Event(2.5, "x", False))
    with pytest.raises(ModelError, match=r"^'x' is read 1\.1 after"):
        memory.do(Event(2.6, "x", False))


@pytest.mark.parametrize(
    ("lifetime", "times"), [(2.66, 0), (3.10, 0), (3.34, 0), (3.40, 1), (4.13, 1), (6.70, 2), (0.0, 0)]
)
def test_refreshes_are_whole_retention_times(lifetime: float, times: int) -> None:
    assert refreshes(lifetime, 3.35) == times


def test_a_small_convolution_lives_for_microseconds() -> None:
    """12 channels on 7x7 and 8x8 maps, one sample: four folds of pixels + 16 cycles, six times."""
    for pixels, lived in ((7, 3.12), (8, 3.84)):
        cycles = product_cycles(published_shape(pixels), CAMEL.cells, 1)
        assert cycles == 4 * (pixels**2 + 16)
        assert lifetimes(cycles / CLOCK_HZ * 1e6)[1] == pytest.approx(lived)


def test_embedded_dram_costs_less_until_it_is_refreshed() -> None:
    dram, sram = OnChipMemory(48, embedded_dram=True), OnChipMemory(48, embedded_dram=False)
    assert dram.access(1e6) == pytest.approx(ACCESS * sram.access(1e6))
    assert dram.leakage(1.0) == pytest.approx(LEAKAGE * sram.leakage(1.0))
    assert dram.refresh(1e6, 1) == pytest.approx(2 * dram.access(1e6))
    assert sram.refresh(1e6, 3) == 0
    assert dram.access(1e6) + dram.refresh(1e6, 1) > sram.access(1e6)


def branch(channels: int = 12, pixels: int = 7) -> Workload:
    side = (pixels, pixels)
    layers = [
        Convolution(f"chain.blocks.0.{name}.layer", channels, channels, (3, 3), side, side)
        for name in ("first", "second")
    ]
    frozen = Convolution("backbone", 3, 8, (3, 3), side, side, trainable=False, input_gradient=False)
    return Workload("duplex", (frozen, *layers))


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
        run_on_system("camel", Workload("net", (Linear("fc", 1, 64, 10),)), 1, [EpochRecord(1)], SystemOptions())
