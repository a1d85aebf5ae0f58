import pytest

from adagp.errors import OptionError
from adagp.hw import Cost, EnergyModel, Technology, energy_table
from adagp.hw.energy import sram

MODEL = EnergyModel(Technology(), word_bits=16, clock_hz=200e6, buffer_kilobytes=512, predictor_kilobytes=600)


def test_every_figure_says_where_it_is_from() -> None:
    assert len(energy_table()) > 25
    assert all(entry.source.startswith(("CACTI", "Horowitz")) for entry in energy_table())


def test_a_word_of_each_kind_costs_what_the_table_says() -> None:
    energy = MODEL.energy(Cost(macs=10, buffer_reads=4, dram_writes=4, own_reads=8))
    assert energy.arithmetic == pytest.approx(15e-12)
    assert energy.buffer == pytest.approx(68.3493e-12)
    assert energy.dram == pytest.approx((909.0 + 2932.9) * 1e-12)
    assert energy.predictor_memory == pytest.approx(2 * 93.5192e-12)
    assert energy.joules == pytest.approx(energy.memory + 15e-12)


def test_leakage_goes_with_time() -> None:
    assert MODEL.energy(Cost(cycles=200_000_000)).leakage == pytest.approx((0.0789144 + 0.157662) * 1e-3)


def test_energy_is_additive() -> None:
    one, two = Cost(100, 20, 30, 40, 50, 60, 70, 80), Cost(5, 4, 3, 2, 1, 9, 8, 7)
    assert MODEL.energy(one + two).joules == pytest.approx((MODEL.energy(one) + MODEL.energy(two)).joules)
    assert MODEL.energy(one * 7).joules == pytest.approx(7 * MODEL.energy(one).joules)


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
    assert inside.energy(Cost(dram_reads=4)).dram == pytest.approx(898.4e-12)


def test_refuses_what_the_table_has_not() -> None:
    with pytest.raises(OptionError) as raised:
        Technology(node=45, dram="ddr4")
    assert str(raised.value) == (
        "the energy table has no DRAM 'ddr4' at 45 nm; it has ddr3 at 32 nm, ddr3 at 45 nm, ddr4 at 22 nm, ddr4 at 32 nm."
    )
    with pytest.raises(OptionError, match=r"^the energy table has no SRAM 'lstp' at 7 nm; it has hp at 22 nm,"):
        Technology(node=7)
