"""What docs/hardware/validation.md says of the Eyeriss chip, and of the study that preceded it."""

import pytest
from benchmarks.eyeriss import breakdown, measured_joules, modelled, quoted

CHIP, SEARCH = "eyeriss-alexnet", "eyeriss-nn-dataflow"


def test_cycles_are_within_a_seventh_of_the_chips_and_a_twentieth_of_an_optimizers() -> None:
    rows, _ = modelled()
    ratios = [row.milliseconds / theirs for row, theirs in zip(rows, quoted(CHIP, "milliseconds"), strict=True)]
    assert ratios == pytest.approx([0.86, 0.87, 0.92, 0.94, 1.01], abs=0.01)
    search = quoted(SEARCH, "milliseconds", "search")
    assert [row.milliseconds / theirs for row, theirs in zip(rows, search, strict=True)] == pytest.approx(
        [1.02, 1.03, 1.05, 1.05, 1.05], abs=0.01
    )


def test_traffic_is_near_the_chips_and_an_optimizers() -> None:
    rows, _ = modelled()
    assert sum(row.dram for row in rows) / sum(quoted(SEARCH, "dram", "search")) == pytest.approx(1.23, abs=0.01)
    assert sum(row.buffer for row in rows) / sum(quoted(CHIP, "buffer")) == pytest.approx(0.76, abs=0.01)


def test_on_chip_energy_is_three_quarters_of_the_measured() -> None:
    rows, energy = modelled()
    assert energy.on_chip / measured_joules() == pytest.approx(0.76, abs=0.01)
    chip = [
        watts * time / 1e3 for watts, time in zip(quoted(CHIP, "milliwatts"), quoted(CHIP, "milliseconds"), strict=True)
    ]
    ratios = [row.millijoules / joules for row, joules in zip(rows, chip, strict=True)]
    assert ratios == pytest.approx([0.68, 0.73, 0.96, 1.11, 1.18], abs=0.01)


def test_energy_by_level_is_that_of_the_study_but_for_a_fifth_of_the_off_chip_part() -> None:
    ours = breakdown()
    for level, error in (("arithmetic", 0.01), ("registers", 0.01), ("dram", 0.22)):
        assert [row[level] for row in ours] == pytest.approx(quoted("eyeriss-breakdown", level), rel=error)
