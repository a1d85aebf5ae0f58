from dataclasses import replace

import pytest

from adagp.hw import Accelerator, Linear, Technology, Workload
from adagp.hw.area import array_area, design_area, mac_area, memory_area
from adagp.hw.presets import with_preset

WORKLOAD = Workload("one", (Linear("fc", 1, 100, 10),))
BASE = Accelerator()


def area(design: str, accelerator: Accelerator = BASE) -> float:
    return design_area(design, accelerator.array, accelerator, WORKLOAD)


def test_a_pe_is_a_multiplier_an_adder_and_three_registers() -> None:
    assert array_area(BASE.array, BASE) == pytest.approx(180 * (1640 + 1360 + 3 * 16 * 4.522) * 1e-6)


def test_widths_that_are_not_in_the_table() -> None:
    assert mac_area(12) == mac_area(16) == 3000
    assert mac_area(64) == 4 * mac_area(32)


def test_designs_add_what_they_have() -> None:
    assert area("baseline") == area("low") == array_area(BASE.array, BASE) + memory_area(512, 45)
    predictor_kilobytes = (36 + 64 * 100) * 16 / 8192
    assert area("efficient") == pytest.approx(area("low") + memory_area(predictor_kilobytes, 45))
    assert area("max") == pytest.approx(area("efficient") + array_area(BASE.predictor_array, BASE))


def test_smaller_words_and_nodes_are_smaller_and_row_stationary_pes_larger() -> None:
    assert area("low", replace(BASE, word_bits=8)) < area("low") < area("low", replace(BASE, word_bits=32))
    shrunk = area("low", replace(BASE, technology=Technology(22, "lstp", "ddr4")))
    assert shrunk == pytest.approx(area("low") * (22 / 45) ** 2)
    assert area("low", replace(BASE, dataflow="rs")) > 2 * area("low")


def test_eyeriss_comes_out_at_seven_tenths_of_its_core() -> None:
    eyeriss = with_preset(BASE, "eyeriss")
    at_65_nm = area("baseline", eyeriss) * (65 / 45) ** 2
    assert at_65_nm / 12.25 == pytest.approx(0.70, abs=0.01)
