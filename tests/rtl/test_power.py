"""Power: cells' functions, the simulation of gates, and a small chip from end to end, by OpenSTA."""

import os
import shutil
from itertools import product
from typing import Any

import numpy as np
import pytest

from adagp.errors import OptionError, ToolError
from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.gate_netlist import GateNetlist, structural_verilog
from adagp.rtl.liberty import nominal_volts, read_cells, truth_table
from adagp.rtl.network import SmallNetwork, random_state
from adagp.rtl.power import check_power, measure_power
from adagp.rtl.synthesis import OSU018, parse_target
from adagp.rtl.tools import verilator

LIBRARY = """
library (tiny) {
  /* two gates, a flip-flop and a latch */
  cell (XORX) { area : 2; pin (A) { direction : input; } pin (B) { direction : input; }
    pin (Y) { direction : output; function : "(A B') + (A' B)"; } }
  cell (INV) { pin (A) { direction : input; } pin (Y) { direction : output; function : "!A"; } }
  cell (DFF) { ff (IQ, IQN) { clocked_on : "CLK"; next_state : "D"; }
    pin (D) { direction : input; } pin (CLK) { direction : input; }
    pin (Q) { direction : output; function : "IQ"; } pin (QN) { direction : output; function : "IQN"; } }
  cell (LATCH) { latch (IQ, IQN) { enable : "G"; data_in : "D"; } pin (Q) { direction : output; function : "IQ"; } }
}
"""
COUNTER: dict[str, Any] = {
    "ports": {"clk": {"direction": "input", "bits": [2]}, "count": {"direction": "output", "bits": [3, 4]}},
    "cells": {
        "low": {"type": "DFF", "connections": {"CLK": [2], "D": [5], "Q": [3]}},
        "high": {"type": "DFF", "connections": {"CLK": [2], "D": [6], "Q": [4]}},
        "not$1": {"type": "INV", "connections": {"A": [3], "Y": [5]}},
        "carry": {"type": "XORX", "connections": {"A": [3], "B": [4], "Y": [6]}},
    },
}
"""A counter of two bits."""


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        ("(!((A B) + C))", lambda a, b, c: not ((a and b) or c)),
        ("A ^ B ^ C", lambda a, b, c: (a + b + c) % 2),
        ("A'B | C' ", lambda a, b, c: (not a and b) or not c),
        ("!A&(B^C)'", lambda a, b, c: not a and b == c),
        ("A * B ^ C", lambda a, b, c: a and b != c),
        ("1", lambda a, b, c: True),
    ],
)
def test_functions_of_cells(function: str, rule: Any) -> None:
    wanted = sum(bool(rule(a, b, c)) << (a + 2 * b + 4 * c) for a, b, c in product((0, 1), repeat=3))
    assert truth_table(function, ("A", "B", "C")) == wanted


def test_cells_of_a_library() -> None:
    cells = read_cells(LIBRARY)
    assert sorted(cells) == ["DFF", "INV", "XORX"]  # a latch is not a gate
    assert cells["DFF"].functions == {"Q": "IQ", "QN": "(!IQ)"}
    assert (cells["DFF"].next_state, cells["DFF"].clock) == ("D", "CLK")
    with pytest.raises(OptionError, match=r"^this is not a Liberty file: it has no library.$"):
        read_cells("nothing of the kind")


def test_the_voltage_of_a_library() -> None:
    assert nominal_volts("library (x) {\n  nom_voltage : 1.8;\n}") == 1.8
    assert nominal_volts("library (x) {\n}") is None


def test_gates_are_simulated_and_their_changes_counted() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    netlist = GateNetlist(COUNTER, read_cells(LIBRARY))
    low, high = netlist.ports["count"]
    counted = np.array([0, *[1] * 8], np.uint8)
    bits = {low: np.arange(9) % 2, high: np.arange(9) // 2 % 2}
    seen = {net: column.astype(np.uint8) for net, column in bits.items()}
    changes, wrong = netlist.simulate({}, seen, counted)
    assert wrong == 0
    assert (changes[low], changes[high]) == (8, 4)
    seen[high][3] ^= 1
    assert netlist.simulate({}, seen, counted)[1] == 1


def test_netlists_in_plain_verilog() -> None:
    text = structural_verilog("counter", COUNTER)
    assert text.startswith("module counter (clk, count);\n  input clk;\n  output [1:0] count;\n")
    assert "  INV not_1 (.A(n3), .Y(n5));\n" in text
    assert "  assign count[1] = n4;\n" in text


@pytest.mark.slow
def test_power_of_a_small_chip() -> None:
    """The netlists do what the chip does, or it is rejected; power grows with the clock; timing is said to be met or not."""
    if not OSU018.is_file() or shutil.which("sta") is None or verilator() is None:
        if os.environ.get("ADAGP_RTL_TEST") == "required":
            pytest.fail("qflow-tech-osu018, opensta or Verilator is not installed")
        pytest.skip("needs Debian's qflow-tech-osu018 and opensta, and Verilator")
    words: dict[str, Any] = {
        "value_words": 256,
        "sum_words": 64,
        "predictor_words": 64,
        "program_words": 64,
        "pool_words": 8,
    }
    blueprint = make_blueprint("low", Array(2, 2), FORMATS["int8"], **words)
    network = SmallNetwork((3, 2), batch=2)
    state = random_state(network, FORMATS["int8"])
    heard: list[str] = []
    slow = measure_power(blueprint, parse_target("liberty"), network, state, 1.0, progress=heard.append)
    assert "timing" in heard
    assert slow.counts["element"] == 4
    # A flip-flop's clock alone takes energy in each cycle: a PE has three registers of 32 bits.
    assert slow.modules["element"].internal > 0
    assert slow.total.total == pytest.approx(sum(one.total * slow.counts[kind] for kind, one in slow.modules.items()))
    assert 0 < slow.activities["element"].mean < 1
    report = slow.as_dict()
    assert report["timing_met"] == (report["shortest_period_ns"] <= 1000)
    assert report["longest_path"]["from"].startswith("core")
    quick = measure_power(blueprint, parse_target("liberty"), network, state, 1000.0)
    assert not quick.as_dict()["timing_met"]
    assert quick.total.switching == pytest.approx(1000 * slow.total.switching, rel=1e-3)
    assert quick.total.leakage == pytest.approx(slow.total.leakage, rel=1e-3)


def test_what_cannot_be_measured_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint = make_blueprint("low", Array(2, 2), FORMATS["int8"])
    network = SmallNetwork((3, 2))
    with pytest.raises(OptionError, match=r"^the clock is 0 megahertz; it must be more than 0 and less than 1000000.$"):
        check_power(blueprint, network, 0, "ws")
    monkeypatch.setattr("adagp.rtl.tools.shutil.which", lambda name: None)
    with pytest.raises(ToolError) as error:
        check_power(blueprint, network, 1, "ws")
    assert str(error.value) == (
        "power and timing analysis needs OpenSTA, which is not installed. Install Debian's package opensta, or put its program "
        "`sta` on the PATH."
    )
