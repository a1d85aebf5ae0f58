"""Hardware files: fields, units, errors with file, line and field; files of other simulators."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import AdagpError, DataError, OptionError
from adagp.hw import Accelerator, Array, Cost
from adagp.hw.axes import parse_variations
from adagp.hw.explore import varied
from adagp.hw.export import configuration
from adagp.hw.hardware_file import (
    FIELDS,
    PRESETS,
    SET_BY_OPTIONS,
    Hardware,
    Links,
    field_option,
    parse_hardware,
    read_hardware,
    with_preset,
)
from adagp.hw.settings import SETTINGS

BASE = Accelerator()
PRESET_VALUES: dict[str, tuple[Array, str, float, float, int, float]] = {
    "eyeriss": (Array(12, 14), "rs", 108.0, 200e6, 16, 0.48e9),
    "tpu-v1": (Array(256, 256), "ws", 24.0 * 1024, 700e6, 8, 34e9),
    "gemmini": (Array(16, 16), "ws", 256.0, 1e9, 8, 16e9),
    "edge": (Array(8, 8), "ws", 128.0, 200e6, 16, 3.2e9),
}


@pytest.mark.parametrize("name", PRESET_VALUES)
def test_presets_are_the_chips_that_they_were_before_they_became_files(name: str) -> None:
    array, dataflow, kilobytes, hertz, bits, bandwidth = PRESET_VALUES[name]
    expected = replace(
        BASE,
        array=array,
        dataflow=dataflow,
        buffer_kilobytes=kilobytes,
        clock_hz=hertz,
        word_bits=bits,
        bandwidth=bandwidth,
    )
    assert with_preset(BASE, name) == expected
    assert PRESETS[name].source


def test_there_is_a_field_for_every_option_of_an_accelerator() -> None:
    assert set(SET_BY_OPTIONS.values()) == set(SETTINGS)
    assert all(field_option(name).help for name in FIELDS)


WHOLE = """
name = "mine"
array = {size = "4x8", dataflow = "os"}

[memory]
buffer.size_kb = 64
buffer.read_pj = 8
buffer.write_pj = 16
buffer.word_bits = 32
dram.read_pj = 100.5
dram.write_pj = 200

[vector]
lanes = 16

[links]
bandwidth_gb_s = 25
"""


def test_a_file_sets_what_it_says_and_leaves_the_rest() -> None:
    hardware = parse_hardware("mine.toml", WHOLE)
    chip = hardware.applied(BASE)
    technology = chip.technology
    assert replace(chip, technology=BASE.technology) == replace(
        BASE, array=Array(4, 8), dataflow="os", buffer_kilobytes=64.0, vector_lanes=16.0
    )
    assert hardware.links == Links(25.0)
    assert parse_hardware("empty.toml", "").links == Links()
    assert hardware.sets == {"array", "dataflow", "buffer_kilobytes", "vector_lanes"}
    energy = chip.energy_model().energy(Cost(buffer_reads=32, dram_reads=64, dram_writes=64))
    assert (energy.buffer, energy.dram) == pytest.approx((8e-12, 300.5e-12))
    assert technology.node == BASE.technology.node


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[array\n",
            "x.toml is not a TOML file: Expected ']' at the end of a table declaration (at line 1, column 7).",
        ),
        (
            "\n[memory.buffer]\n# a comment\nsize_kb = -1\n",
            "x.toml, line 4: memory.buffer.size_kb is -1; it must be 0.001 to 1,000,000,000 kilobytes.",
        ),
        ("[array]\nsize = 12\n", "x.toml, line 2: array.size is 12; it must be text."),
        ('[array]\nclock_mhz = "fast"\n', "x.toml, line 2: array.clock_mhz is 'fast'; it must be a number."),
        ("[words]\nbits = 8.5\n", "x.toml, line 2: words.bits is 8.5; it must be a whole number."),
        ("[execution]\nfusion = 1\n", "x.toml, line 2: execution.fusion is 1; it must be true or false."),
        (
            '[execution]\ntiling = "slow"\n',
            "x.toml, line 2: unknown tiling 'slow'. Choose from: balanced, edp, energy, latency.",
        ),
        (
            '\narray = {size = "0x4"}\n',
            "x.toml: array 0x4 is not allowed: rows and columns must be at least 1, for example 12x15.",
        ),
        (
            "[memory.buffer]\nsize_kb = 64\nread_pj = 3\n",
            "x.toml: line 3: memory.buffer.read_pj has no effect without memory.buffer.read_pj and memory.buffer.write_pj.",
        ),
        (
            '[optimizer]\nkind = "sgd"\nstate_bits = 32\n',
            "x.toml: the optimizer has no state, so the width of its state has no effect; leave it out.",
        ),
    ],
)
def test_errors_name_file_line_and_field(text: str, message: str) -> None:
    with pytest.raises(AdagpError) as raised:
        parse_hardware("x.toml", text)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "line"), [('[array]\n\nsze = "4x4"\n', 3), ("[vektor]\nlanes = 4\n", 2), ('[array]\n"size.x" = 1\n', 2)]
)
def test_unknown_fields_are_errors(text: str, line: int) -> None:
    with pytest.raises(OptionError, match=rf"^x\.toml, line {line}: unknown field '"):
        parse_hardware("x.toml", text)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^there is no hardware file .*none\.toml\.$"):
        read_hardware(tmp_path / "none.toml")


def test_a_configuration_of_scale_sim_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "scale.cfg"
    path.write_text(configuration(Array(7, 9), "is", kilobytes=40))
    chip = read_hardware(path).applied(BASE)
    assert (chip.array, chip.dataflow, chip.buffer_kilobytes, chip.bandwidth) == (Array(7, 9), "is", 120.0, inf)
    path.write_text(path.read_text().replace("= CALC", "= USER").replace("Bandwidth = 100", "Bandwidth = 10"))
    assert read_hardware(path).applied(BASE).bits_per_cycle == 10 * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ArrayHeight = 7", "ArrayHeight = x"), ": ArrayHeight is 'x'; it must be a whole number."),
        (("Dataflow = is", ""), " is not a configuration of SCALE-Sim: 'Dataflow' is missing."),
        (("Dataflow = is", "Dataflow = xy"), ": unknown dataflow 'xy'"),
        (
            ("[architecture_presets]", "[other]"),
            " is not a configuration of SCALE-Sim: 'architecture_presets' is missing.",
        ),
    ],
)
def test_damaged_configurations_of_scale_sim(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "scale.cfg"
    path.write_text(configuration(Array(7, 9), "is").replace(*change))
    with pytest.raises(AdagpError) as raised:
        read_hardware(path)
    assert str(raised.value).startswith(f"{path}{message}")


ZIGZAG = """
name: small
operational_array:
  unit_energy: 0.04
  unit_area: 1
  dimensions: [D1, D2]
  sizes: [32, 16]
memories:
  rf_1B:
    size: 8
    r_cost: 0.01
    w_cost: 0.01
    operands: [I2]
    ports: [{name: r_port_1, type: read, bandwidth_min: 8, bandwidth_max: 8}]
  sram_2MB:
    size: 16777216
    r_cost: 416.16
    w_cost: 378.4
    operands: [I1, I2, O]
    ports: [{name: r_port_1, type: read, bandwidth_min: 64, bandwidth_max: 2048}]
  dram:
    size: 10000000000
    r_cost: 700
    w_cost: 750
    operands: [I1, I2, O]
    ports: [{name: rw_port_1, type: read_write, bandwidth_min: 64, bandwidth_max: 64}]
"""


def test_an_accelerator_of_zigzag(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "chip.yaml"
    path.write_text(ZIGZAG)
    chip = read_hardware(path).applied(BASE)
    sizes = chip.array, chip.buffer_kilobytes, chip.buffer_port, chip.bits_per_cycle
    assert sizes == (Array(32, 16), 2048.0, 2048.0, 64)
    energy = chip.energy_model().energy(Cost(buffer_reads=2048, dram_writes=64))
    assert (energy.buffer, energy.dram) == pytest.approx((416.16e-12, 750e-12))
    path.write_text(ZIGZAG.replace("[32, 16]", "[32, 16, 2]"))
    with pytest.raises(OptionError, match="its array has 3 dimensions; only arrays of two are modelled"):
        read_hardware(path)
    path.write_text("memories: {}")
    with pytest.raises(DataError, match=r"is not an accelerator of ZigZag: KeyError: 'operational_array'\.$"):
        read_hardware(path)


def test_any_field_can_be_varied() -> None:
    texts = ("vector.lanes=16..64", "execution.fused_attention=true,false", "memory.dram.type=ddr3,hbm2")
    variations = parse_variations(texts)
    assert variations == {
        "vector.lanes": [16.0, 32.0, 64.0],
        "execution.fused_attention": [True, False],
        "memory.dram.type": ["ddr3", "hbm2"],
    }
    machines = varied([BASE, replace(BASE, dataflow="os")], Hardware("", {}), variations)
    assert len(machines) == 2 * 3 * 2 * 2
    for machine, choice in machines.items():
        assert (machine.vector_lanes, machine.technology.dram) == (choice["vector.lanes"], choice["memory.dram.type"])


def test_an_energy_is_varied_together_with_those_of_the_file() -> None:
    hardware = parse_hardware("x.toml", "[memory.dram]\nread_pj = 1\nwrite_pj = 2\n")
    machines = varied([hardware.applied(BASE)], hardware, {"memory.dram.read_pj": [5.0, 6.0]})
    accesses = [machine.technology.dram_access for machine in machines]
    assert [(entry.read, entry.write) for entry in accesses if entry is not None] == [(5.0, 2.0), (6.0, 2.0)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("lanes",), "--vary: cannot read 'lanes'; write FIELD=VALUES, for example vector.lanes=16..256."),
        (("vector.lanes=1", "vector.lanes=2"), "--vary vector.lanes is given twice."),
        (("vector.lanes=x",), "--vary vector.lanes: cannot read 'x'; write a number."),
        (("execution.fusion=yes",), "--vary execution.fusion: cannot read 'yes'; write true, false or both."),
        (("vector.lane=1",), "unknown field 'vector.lane'. Did you mean 'vector.lanes'?"),
    ],
)
def test_what_cannot_be_varied(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_variations(texts)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("values", [{"links.latency_us": [1.0, 2.0]}, {"source": ["a", "b"]}])
def test_a_field_that_makes_no_difference_is_an_error(values: dict[str, list[Any]]) -> None:
    with pytest.raises(OptionError, match=r"some values make no difference to the accelerator\.$"):
        varied([BASE], Hardware("", {}), values)
