"""A chip as text: RTLIL (Yosys's own language) and Verilog, a module for each kind of block."""

import re
from pathlib import Path

from adagp.rtl.block import to_rtlil
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip
from adagp.rtl.tools import EQUAL_WIDTHS, cached_folder, digest, yosys


def chip_rtlil(blueprint: Blueprint, *, simulated: bool = False) -> str:
    """Return the chip in Yosys's language."""
    return "\n".join(chip_modules(blueprint, simulated=simulated).values())


def chip_modules(blueprint: Blueprint, *, simulated: bool = False) -> dict[str, str]:
    """Return every kind of block of the chip in Yosys's language; those inside a block come before it."""
    return to_rtlil(Chip(blueprint, simulated=simulated))


HEADER = """\
// Verilog-2005, written by adagp and Yosys. Clean under `verilator --lint-only -Wall` and `iverilog -g2005 -Wall`, but for two
// classes of style that Yosys cannot avoid: all modules are in one file, and operators compute bits that nothing reads, such as
// the fraction that rounding cuts off.
/* verilator lint_off DECLFILENAME */
/* verilator lint_off UNUSEDSIGNAL */
"""
DECLARED = r"^(  reg (?:signed )?(?:\[\S+\] )?)(\S+|\\\S+ ) = (\S+);$"
"""A register with what it begins with."""


def to_verilog(text: str) -> str:
    """Return Verilog for a text in Yosys's language, from the cache if it was made before."""
    # Banks are written before they are read: what they begin with, a line a word, can be left out.
    blank = "delete t:$meminit t:$meminit_v2"
    # Processes become assignments: an `always @*` of constants alone would never run, and leave X.
    logic = ["proc -norom", "pmuxtree", blank, "memory_collect", "opt_clean -purge", EQUAL_WIDTHS]
    script = ["read_rtlil chip.il", *logic, "write_verilog -noattr -norename chip.v"]

    def make(work: Path) -> None:
        (work / "chip.il").write_text(text, encoding="utf-8")
        yosys(script, work)
        (work / "chip.il").unlink()
        written = (work / "chip.v").read_text(encoding="utf-8")
        # A declaration that also initialises is, next to an assignment at the clock, suspicious to linters.
        started = re.sub(DECLARED, r"\1\2;\n  initial \2 = \3;", written, flags=re.MULTILINE)
        (work / "chip.v").write_text(HEADER + started, encoding="utf-8")

    return (cached_folder(f"verilog-{digest(HEADER, text, *script)}", make) / "chip.v").read_text(encoding="utf-8")
