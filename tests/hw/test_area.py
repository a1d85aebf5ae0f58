from dataclasses import replace

import pytest

from adagp.hw import Accelerator, Linear, Technology, Workload
from adagp.hw.area import array_area, design_area, mac_area, memory_area
from adagp.hw.hardware_file import with_preset

WORKLOAD = Workload("one", (Linear("fc", 1, 100, 10),))
BASE = Accelerator()


def area(design: str, accelerator: Accelerator = BASE) -> float:
    return design_area(design, accelerator.array, accelerator, WORKLOAD)


def test_a_pe_is_a_multiplier_an_adder_and_registers_for_two_operands_and_a_sum() -> None:
    pe = 4 * 618 + 32 * 4.522 + (2 * 16 + 32) * 4.522
    assert array_area(BASE.array, BASE) == pytest.approx(180 * pe * 1e-6)


def test_multipliers_grow_with_the_square_of_their_width() -> None:
    assert mac_area(16, 0) == 4 * mac_area(8, 0) == 4 * 618


def test_designs_add_what_they_have() -> None:
    assert area("baseline") == area("low") == array_area(BASE.array, BASE) + memory_area(512, 45)
    predictor_kilobytes = (36 + 64 * 100) * 16 / 8192
    assert area("efficient") == pytest.approx(area("low") + memory_area(predictor_kilobytes, 45))
    assert area("max") == pytest.approx(area("efficient") + array_area(BASE.predictor_array, BASE))


def test_smaller_words_and_nodes_are_smaller_and_row_stationary_pes_larger() -> None:
    assert area("low", replace(BASE, word_bits=8)) < area("low") < area("low", replace(BASE, word_bits=32))
    assert area("low", replace(BASE, technology=Technology(22, "lstp", "ddr4"))) < 0.3 * area("low")
    assert memory_area(64, 45) == pytest.approx(0.2358, rel=0.01)  # as CACTI says of 64 kB
    assert memory_area(64, 90) == pytest.approx(4 * memory_area(64, 45))
    assert area("low", replace(BASE, dataflow="rs")) > 2 * area("low")


def test_eyeriss_comes_out_at_seven_tenths_of_its_core() -> None:
    eyeriss = replace(with_preset(BASE, "eyeriss"), sum_bits=16)
    at_65_nm = area("baseline", eyeriss) * (65 / 45) ** 2
    assert at_65_nm / 12.25 == pytest.approx(0.70, abs=0.05)
