"""Buffer trees: no net drives too much, the logic stays what it was, and blocks see each other's loads."""

import shutil
from typing import Any

import numpy as np
import pytest

from adagp.rtl.gate_netlist import LOADS, GateNetlist, best_buffer, port_loads, with_buffers
from adagp.rtl.liberty import read_cells

LIBRARY = """
library (tiny) {
  cell (INV) { area : 1; pin (A) { direction : input; capacitance : 2; }
    pin (Y) { direction : output; max_capacitance : 40; function : "(!A)"; } }
  cell (WEAK) { area : 2; pin (A) { direction : input; capacitance : 1; }
    pin (Y) { direction : output; max_capacitance : 20; function : "A"; } }
  cell (STRONG) { area : 3; pin (A) { direction : input; capacitance : 2; }
    pin (Y) { direction : output; max_capacitance : 60; function : "(A)"; } }
  cell (DFF) { area : 5; ff (IQ, IQN) { clocked_on : "CLK"; next_state : "D"; }
    pin (D) { direction : input; capacitance : 2; } pin (CLK) { direction : input; capacitance : 3; }
    pin (Q) { direction : output; max_capacitance : 20; function : "IQ"; } }
}
"""
CELLS = read_cells(LIBRARY)
CELL_LOADS: dict[str, dict[str, float]] = {"INV": {"A": 2}, "STRONG": {"A": 2}, "DFF": {"D": 2}, "inner": {}}
COUNT = 700
"""Gates of one net: more than two levels of a tree hold."""


def wide_module() -> dict[str, Any]:
    """A register whose output goes to inverters, flip-flops of one clock, and a block inside."""
    cells: dict[str, Any] = {"first": {"type": "DFF", "connections": {"CLK": [2], "D": [3], "Q": [4]}}}
    for place in range(COUNT):
        cells[f"inv{place}"] = {"type": "INV", "connections": {"A": [4], "Y": [10 + place]}}
        cells[f"late{place}"] = {
            "type": "DFF",
            "connections": {"CLK": [2], "D": [10 + place], "Q": [10 + COUNT + place]},
        }
    cells["block"] = {"type": "inner", "connections": {"clk": [2], "words": [4, 3], "sent": [5]}}
    outputs = [10 + COUNT + place for place in range(COUNT)]
    return {
        "ports": {
            "clk": {"direction": "input", "bits": [2]},
            "given": {"direction": "input", "bits": [3]},
            "shown": {"direction": "output", "bits": outputs},
        },
        "cells": cells,
    }


INSIDE = {"inner": {"clk": [0.0], "words": [12.0, 30.0]}}


def loads_of(module: dict[str, Any]) -> dict[int, float]:
    """Return the load of each net, from the netlist alone."""
    found: dict[int, float] = {}
    for cell in module["cells"].values():
        for pin, bits in cell["connections"].items():
            for place, bit in enumerate(bits):
                inner = cell["type"] == "inner" and pin in INSIDE["inner"]
                load = INSIDE["inner"][pin][place] if inner else CELL_LOADS[cell["type"]].get(pin, 0.0)
                found[bit] = found.get(bit, 0.0) + load
    return found


def test_no_net_drives_too_much() -> None:
    before = wide_module()
    after = with_buffers(before, CELLS, INSIDE)
    assert loads_of(before)[4] == 2 * COUNT + 12
    assert max(loads_of(after).values()) == LOADS * CELLS["STRONG"].loads["A"]
    assert before == wide_module()
    clocks = [one["connections"]["CLK"] for one in after["cells"].values() if one["type"] == "DFF"]
    assert clocks == [[2]] * (COUNT + 1)


def test_the_logic_stays() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    given = np.random.default_rng(0).integers(0, 2, 40).astype(np.uint8)
    shown = np.concatenate([[0, 1], 1 - given[:-2]]).astype(np.uint8)
    for module in (wide_module(), with_buffers(wide_module(), CELLS, INSIDE)):
        netlist = GateNetlist(module, CELLS)
        wanted = dict.fromkeys(netlist.ports["shown"], shown)
        assert netlist.simulate({netlist.ports["given"][0]: given}, wanted, np.ones(40, np.uint8))[1] == 0


def test_loads_of_ports_hold_the_blocks_inside() -> None:
    assert port_loads(wide_module(), CELLS, INSIDE) == {"clk": [0.0], "given": [32.0]}


def test_the_buffer_that_drives_most_for_its_area() -> None:
    found = best_buffer(CELLS)
    assert found is not None
    assert found.name == "STRONG"
    without = {name: cell for name, cell in CELLS.items() if not cell.is_buffer}
    assert sorted(without) == ["DFF", "INV"]
    assert best_buffer(without) is None
    assert with_buffers(wide_module(), without, INSIDE) == wide_module()
