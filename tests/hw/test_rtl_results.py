"""What chips of our own say about the accelerator."""

import json
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.product import Cost
from adagp.hw.rtl_results import with_rtl

PLACED = {"designs": {"baseline": {"megahertz": 61.5}, "max": {"megahertz": 48.25}}}


def chip(watts: float = 0.8e-3) -> dict[str, Any]:
    return {"megahertz": 10.0, "watts": 1.0, "modules": {"element": {"count": 16, "watts": watts}}}


def measured(**more: Any) -> dict[str, Any]:
    designs = {"max": chip(2e-3), "baseline": chip()}
    return {"format": "int16", "node_nm": 180, "volts": 1.8, "equal_power_pes": 1.51, "designs": designs, **more}


def written(folder: Path, content: object, name: str = "chip.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_the_slowest_clock_is_taken(tmp_path: Path) -> None:
    usual = Accelerator()
    assert with_rtl(usual, ()) == usual
    assert with_rtl(usual, [written(tmp_path, PLACED)]).clock_hz == 48.25e6


def test_the_energy_of_a_pe_is_all_that_the_array_takes(tmp_path: Path) -> None:
    """0.8 mW at 10 MHz are 80 pJ a cycle; 180 nm and 1.8 V to 45 nm and 0.9 V is a sixteenth."""
    files = [written(tmp_path, PLACED, "place.json"), written(tmp_path, measured(), "power.json")]
    accelerator = with_rtl(Accelerator(), files)
    assert (accelerator.equal_power_pes, accelerator.clock_hz) == (1.51, 48.25e6)
    cost = Cost(cycles=1000, macs=7, registers=64, network=64)
    energy = accelerator.energy_model(pes=180).energy(cost)
    assert energy.clock == pytest.approx(1000 * 180 * 80e-12 / 16)
    assert (energy.arithmetic, energy.registers, energy.network) == (0, 0, 0)
    usual = Accelerator().energy_model(pes=180).energy(cost)
    assert (energy.buffer, energy.dram) == (usual.buffer, usual.dram)


def test_a_chip_alone_has_no_equal_power(tmp_path: Path) -> None:
    content = measured(designs={"low": chip(1.6e-3)}, equal_power_pes=None, node_nm=45, volts=0.9)
    accelerator = with_rtl(Accelerator(), [written(tmp_path, content)])
    assert accelerator.equal_power_pes == Accelerator().equal_power_pes
    assert accelerator.technology.pe_cycle is not None
    assert accelerator.technology.pe_cycle.read == pytest.approx(160)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "'{}' has no designs; give a file that `adagp rtl place --json` or `power --json` wrote."),
        (
            {"designs": {"max": 1}},
            "'{}' has no designs; give a file that `adagp rtl place --json` or `power --json` wrote.",
        ),
        ({"designs": {"max": {}}}, "'{}': megahertz of max is None; it must be a number above 0 and below 1,000,000."),
        (
            measured(designs={"max": {}}),
            "'{}': watts of a PE of max is None; it must be a number above 0 and below 1,000,000.",
        ),
        (
            measured(node_nm=None),
            "'{}' does not give the process node of its cells; run adagp rtl power again, with --node for cells of your own.",
        ),
        (measured(format="bfp"), "'{}': PEs of format 'bfp' multiply no words of a known width."),
        (
            measured(format="int8"),
            "the energy of a PE was measured with words of 8 bits; the accelerator multiplies 16. Give --word-bits 8, or "
            "measure another chip.",
        ),
    ],
)
def test_other_files_are_rejected(content: object, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(OptionError) as caught:
        with_rtl(Accelerator(), [path])
    assert str(caught.value) == message.format(path)
    path.write_text("{")
    with pytest.raises(OptionError, match=r"is not JSON.$"):
        with_rtl(Accelerator(), [path])


def test_energies_of_a_systolic_array_do_not_hold_for_others(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        with_rtl(Accelerator(dataflow="rs"), [written(tmp_path, measured())])
    assert str(caught.value) == (
        "the energy of a PE was measured on a systolic array (ws, os or is); it does not hold for dataflow rs."
    )


def test_one_file_of_a_kind(tmp_path: Path) -> None:
    first, second = (written(tmp_path, PLACED, name) for name in ("a.json", "b.json"))
    with pytest.raises(OptionError) as caught:
        with_rtl(Accelerator(), [first, second])
    assert str(caught.value) == f"'{first}' and '{second}' are both from adagp rtl place; give one of them."
