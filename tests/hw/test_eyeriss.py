"""What docs/hardware.md says of the Eyeriss chip."""

import pytest
from benchmarks.eyeriss import chip, measured_joules, modelled


def test_cycles_are_within_a_seventh_of_the_chips_and_between_those_of_an_optimizer() -> None:
    rows, _ = modelled()
    ratios = [row.milliseconds / ours for row, ours in zip(rows, chip("milliseconds"), strict=True)]
    assert ratios == pytest.approx([0.86, 0.87, 0.92, 0.94, 1.01], abs=0.01)
    others = [row.milliseconds / ours for row, ours in zip(rows, chip("milliseconds", "nn_dataflow"), strict=True)]
    assert others == pytest.approx([1.02, 1.03, 1.05, 1.05, 1.05], abs=0.01)


def test_traffic_is_near_the_chips() -> None:
    rows, _ = modelled()
    assert sum(row.dram for row in rows) == pytest.approx(26.3, abs=0.1)  # nn-dataflow: 23.4
    assert sum(row.buffer for row in rows) / sum(chip("buffer")) == pytest.approx(0.76, abs=0.01)


def test_on_chip_energy_is_three_quarters_of_the_measured() -> None:
    _, energy = modelled()
    assert energy.on_chip / measured_joules() == pytest.approx(0.76, abs=0.01)
    assert energy.registers > energy.arithmetic > energy.buffer
