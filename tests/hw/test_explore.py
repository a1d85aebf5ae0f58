from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.hw import Accelerator, Convolution, Linear, Technology, Workload, scheduled_run, simulate
from adagp.hw.axes import parse_axes
from adagp.hw.explore import (
    Space,
    accelerators,
    array_area,
    design_area,
    explore,
    mac_area,
    memory_area,
    pareto_front,
    parse_objectives,
)
from adagp.hw.hardware_file import PRESETS, with_preset
from adagp.hw.settings import with_settings
from adagp.schedules import parse_schedule

WORKLOAD = Workload(
    "small",
    (
        Convolution("stem", 3, 16, (3, 3), (16, 16), (16, 16), input_gradient=False),
        Convolution("deep", 16, 32, (3, 3), (16, 16), (8, 8), (2, 2)),
        Linear("head", 1, 512, 10),
    ),
)
VALUES = parse_axes({"array": "4x4..16x16", "buffer": "8k..64k", "dataflow": "ws,rs", "design": "baseline,max"})
SPACE = Space(
    WORKLOAD,
    accelerators(Accelerator(), VALUES),
    tuple(scheduled_run(parse_schedule("1:1", 3), 3, 640, batch) for batch in (16, 32)),
    tuple(VALUES["design"]),
)


@pytest.mark.medium
def test_every_point_is_a_simulation() -> None:
    told: list[int] = []
    points = explore(SPACE, 1, told.append)
    assert len(points) == SPACE.points == 9 * 4 * 2 * 2 * 2
    assert sum(told) == SPACE.simulations
    expected = []
    for accelerator in SPACE.accelerators:
        for run in SPACE.runs:
            simulation = simulate(WORKLOAD, accelerator, run, SPACE.designs)
            for design in SPACE.designs:
                outcome = simulation.outcomes[design]
                area = design_area(design, outcome.array, accelerator, WORKLOAD)
                expected.append((outcome.cost.cycles, outcome.energy.joules, area, run.batch, design))
    found = [
        (one.cycles, one.energy_joules, one.area_mm2, one.settings["batch"], one.settings["design"]) for one in points
    ]
    assert points[0].row["buffer_kb"] == 8
    assert points[0].row["gb_per_s"] == 12.8
    assert found == expected


@pytest.mark.medium
def test_several_processes_find_the_same() -> None:
    assert explore(SPACE, 2) == explore(SPACE, 1)


def test_all_combinations_of_the_axes() -> None:
    found = {(one.array, one.buffer_kilobytes, one.dataflow) for one in SPACE.accelerators}
    assert len(found) == len(SPACE.accelerators) == 9 * 4 * 2
    assert accelerators(Accelerator(), {}) == (Accelerator(),)
    with pytest.raises(OptionError, match=r"^word width 12 is not in the energy table"):
        accelerators(Accelerator(), parse_axes({"word_bits": "12"}))


def test_objectives() -> None:
    assert parse_objectives("area, cycles,area") == ("area", "cycles")
    with pytest.raises(OptionError) as raised:
        parse_objectives("cycle")
    assert str(raised.value) == (
        "unknown objective 'cycle'. Did you mean 'cycles'? Choose from: area, cycles, dram, energy, seconds."
    )
    with pytest.raises(OptionError, match=r"^--objective is empty; give at least one name\.$"):
        parse_objectives(" ,")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_accelerators_and_give_way_to_what_is_given(name: str) -> None:
    base = Accelerator(clock_hz=123e6, buffer_kilobytes=77)
    array = with_preset(Accelerator(), name).array
    assert with_preset(base, name) == with_preset(Accelerator(), name)
    kept = with_settings(with_preset(base, name), {"clock": 123.0, "buffer": 77.0})
    assert (kept.clock_hz, kept.buffer_kilobytes, kept.array) == (123e6, 77, array)
    assert with_preset(base, None) is base


Row = list[float]


def brute_force(rows: list[Row]) -> list[bool]:
    """Compare each with each."""

    def beats(one: Row, other: Row) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True)) and one != other

    return [not any(beats(other, row) for other in rows) for row in rows]


@given(
    st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(st.integers(0, 6).map(float), min_size=size, max_size=size), max_size=40)
    )
)
def test_the_front_is_what_comparing_each_with_each_gives(rows: list[Row]) -> None:
    assert pareto_front(rows) == brute_force(rows)


def test_equal_points_stay_together() -> None:
    assert pareto_front([[1, 2], [2, 1], [1, 2], [2, 2]]) == [True, True, True, False]
    assert pareto_front([]) == []


ONE_LAYER = Workload("one", (Linear("fc", 1, 100, 10),))
BASE = Accelerator()


def area(design: str, accelerator: Accelerator = BASE) -> float:
    return design_area(design, accelerator.array, accelerator, ONE_LAYER)


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
