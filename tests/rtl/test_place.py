"""Routed chips: nextpnr's report as it is read, what does not fit, and one tiny chip."""

import json
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError, ToolError
from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.place import _check_fits, place, read_report

WORDS: dict[str, Any] = {"value_words": 512, "sum_words": 64, "program_words": 16}


def test_a_report_is_read() -> None:
    clock = "posedge $glbnet$clk"
    step = {"from": {"cell": "core.unit.job_FF_3"}, "to": {"cell": "core.row_lane_0.sums.memory.0.0"}}
    report = {
        "fmax": {"$glbnet$clk": {"achieved": 67.691, "constraint": 100}},
        "utilization": {"TRELLIS_COMB": {"used": 9}, "TRELLIS_FF": {"used": 8}, "DP16KD": {"used": 7}},
        "critical_paths": [
            {"from": "<async>", "to": clock, "path": [step]},
            {"from": clock, "to": clock, "path": [step]},
        ],
    }
    chip = read_report(report)
    assert (chip.megahertz, chip.luts, chip.registers, chip.multipliers, chip.block_rams) == (67.69, 9, 8, 0, 7)
    assert (chip.path_from, chip.path_to) == ("core.unit", "core.row_lane_0.sums")


def test_what_does_not_fit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netlist = tmp_path / "chip.json"
    cells = {str(number): {"type": "DP16KD"} for number in range(209)}
    netlist.write_text(json.dumps({"modules": {"chip": {"cells": cells}}}))
    with pytest.raises(OptionError) as caught:
        _check_fits(netlist)
    assert str(caught.value) == (
        "the chip needs 209 block RAMs; an ECP5-85k has 208. Give a smaller array or smaller banks."
    )
    monkeypatch.setattr("adagp.rtl.place.find_spec", lambda name: None)
    with pytest.raises(ToolError) as missing:
        place(make_blueprint("baseline", Array(2, 2), FORMATS["int8"], **WORDS))
    assert str(missing.value) == (
        "placing needs nextpnr, which is not installed. Install it with: pip install '.[rtl,place]'."
    )


@pytest.mark.slow
def test_a_tiny_chip_is_placed_and_routed() -> None:
    """What it takes is known by construction; its clock is that of no unregistered path from a RAM into a multiplier."""
    chip = place(make_blueprint("baseline", Array(2, 2), FORMATS["int8"], stages=1, **WORDS))
    assert chip.multipliers == 4 + 1  # PEs and the element unit
    assert chip.block_rams >= 4  # values of four lanes
    assert chip.megahertz > 40
