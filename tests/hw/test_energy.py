from dataclasses import replace
from pathlib import Path

import pytest

from adagp.errors import DataError, OptionError
from adagp.hw import Cost, EnergyModel, Technology, energy_table
from adagp.hw.energy import array_entry, sram

MODEL = EnergyModel(Technology(), 16, clock_hz=200e6, buffer_kilobytes=512, predictor_kilobytes=600, pes=180)


def test_every_figure_says_where_it_is_from() -> None:
    assert len(energy_table()) > 25
    assert all(
        entry.source.startswith(
            ("CACTI", "Horowitz", "Chen, Emer, Sze", "O'Connor", "8 pJ a bit", "adagp rtl", "assumed:")
        )
        for entry in energy_table()
    )


def test_each_action_costs_what_the_table_says() -> None:
    energy = MODEL.energy(
        Cost(macs=10, buffer_reads=64, dram_writes=64, own_reads=128, registers=64, network=32, cycles=100)
    )
    assert energy.arithmetic == pytest.approx(15e-12)
    assert energy.buffer == pytest.approx(68.3493e-12)
    assert energy.dram == pytest.approx((909.0 + 2932.9) * 1e-12)
    assert energy.predictor_memory == pytest.approx(2 * 93.5192e-12)
    assert energy.registers == pytest.approx(4 * 1.5e-12)
    assert energy.network == pytest.approx(2 * 3e-12)
    assert energy.clock == pytest.approx(100 * 180 * 0.75e-12)
    assert energy.joules == pytest.approx(sum(energy.by_level.values()))
    assert energy.on_chip == pytest.approx(energy.joules - energy.dram)


def test_a_systolic_array_takes_what_was_measured_on_the_gates_of_one() -> None:
    """What adagp rtl power said of a 4x4 chip in osu018, batches of 2, 8 and 32: pJ of a PE in a cycle, at its utilisation."""
    measured = {20_224 / (16 * 16_712): 86.41, 80_896 / (16 * 21_536): 86.85, 323_584 / (16 * 40_832): 87.35}
    model = replace(MODEL, array_kind="systolic", pes=1)
    for utilisation, picojoules in measured.items():
        macs = round(1000 * utilisation)
        energy = model.energy(Cost(cycles=1000, macs=macs, registers=16 * macs, network=48 * macs))
        in_array = energy.registers + energy.network + energy.clock
        assert in_array * 1e12 / 1000 == pytest.approx(picojoules / 16, rel=0.002)


@pytest.mark.parametrize(("bits", "picojoules"), [(8, 3.09), (12, 5.39), (16, 5.39), (32, 21.0), (64, 21.0)])
def test_the_clock_takes_more_for_wider_words(bits: int, picojoules: float) -> None:
    assert array_entry(Technology(), "clock", "systolic", bits).read == picojoules


@pytest.mark.parametrize(
    ("dram", "picojoules"), [("lpddr4", 8.0), ("gddr5", 14.0), ("hbm2", 3.9), ("horowitz", 30.46875)]
)
@pytest.mark.parametrize("node", [45, 22])
def test_memories_of_their_own_chip_go_with_any_node(dram: str, picojoules: float, node: int) -> None:
    model = replace(MODEL, technology=Technology(node, dram=dram))
    energy = model.energy(Cost(dram_reads=500, dram_writes=500))
    assert energy.dram == pytest.approx(1000 * picojoules * 1e-12)


def test_leakage_goes_with_time() -> None:
    assert MODEL.energy(Cost(cycles=200_000_000)).leakage == pytest.approx((0.0789144 + 0.157662) * 1e-3)


def test_energy_is_additive() -> None:
    one, two = Cost(100, 20, 30, 40, 50, 60, 70, 80, 90, 95), Cost(5, 4, 3, 2, 1, 9, 8, 7, 6, 5)
    assert MODEL.energy(one + two).joules == pytest.approx((MODEL.energy(one) + MODEL.energy(two)).joules)
    assert MODEL.energy(one * 7).joules == pytest.approx(7 * MODEL.energy(one).joules)


def test_a_table_of_your_own_takes_the_place_of_the_packages(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text(
        "part,name,kilobytes,node_nm,bits,read_pj,write_pj,leakage_mw,source\n"
        "sram,mine,1024,7,32,10,20,0,me\n"
        "dram,hbm,,7,64,100,200,,me\n"
        "mac,float,,7,16,0.5,,,me\n"
        "register,pe,,7,16,0.1,0.1,,me\n"
        "network,pe,,7,16,0.2,0.2,,me\n"
        "clock,pe,,7,16,0.3,,,me\n"
    )
    technology = Technology(7, "mine", "hbm", table=str(own))
    energy = EnergyModel(technology, 16, 1e9, 512, pes=2).energy(Cost(10, 4, buffer_writes=32, dram_reads=64))
    assert energy.arithmetic == pytest.approx(2e-12)
    assert energy.buffer == pytest.approx(20e-12)
    assert energy.dram == pytest.approx(100e-12)  # it has no pins of its own
    assert energy.clock == pytest.approx(6e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no energy table {path}."),
        (
            "part,name\nsram,mine\n",
            "{path} is not an energy table: 'kilobytes'; its columns are part, name, kilobytes, node_nm, bits, read_pj, "
            "write_pj, leakage_mw and source, as in adagp/hw/energy_table.csv.",
        ),
        (
            "part,name,kilobytes,node_nm,bits,read_pj,write_pj,leakage_mw,source\nsram,lstp,1,45,64,1,1,1,me\n",
            "the energy table {path} has no row for dram, mac, register, network, clock.",
        ),
    ],
)
def test_what_is_no_table_is_rejected(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError) as raised:
        Technology(table=str(path))
    assert str(raised.value) == message.format(path=path)


def test_a_memory_takes_the_smallest_entry_that_holds_it_or_banks_of_the_largest() -> None:
    technology = Technology()
    assert sram(technology, 64).kilobytes == 64
    assert sram(technology, 65).kilobytes == 128
    banked = sram(technology, 2500)
    assert banked.kilobytes == 3072
    assert banked.read == sram(technology, 1024).read
    assert banked.leakage == pytest.approx(3 * sram(technology, 1024).leakage)


def test_pins_can_be_left_out() -> None:
    inside = EnergyModel(Technology(dram_io=False), 16, 200e6, 512)
    assert inside.energy(Cost(dram_reads=64)).dram == pytest.approx(898.4e-12)


def test_rejects_what_the_table_has_not() -> None:
    with pytest.raises(OptionError) as raised:
        Technology(node=45, dram="ddr4")
    assert str(raised.value) == (
        "the energy table has no DRAM 'ddr4' at 45 nm; it has ddr3 at 32 nm, ddr3 at 45 nm, ddr4 at 22 nm, ddr4 at 32 nm, "
        "gddr5 at any nm, hbm2 at any nm, horowitz at any nm, lpddr4 at any nm."
    )
    with pytest.raises(OptionError, match=r"^the energy table has no SRAM 'lstp' at 7 nm; it has hp at 22 nm,"):
        Technology(node=7)
