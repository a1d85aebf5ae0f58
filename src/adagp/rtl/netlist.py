"""A chip as text: Yosys's own language, and Verilog with one module for each kind of block."""

from pathlib import Path

from adagp.rtl.block import to_rtlil
from adagp.rtl.chip import Blueprint, Chip
from adagp.rtl.tools import digest, kept, yosys


def chip_rtlil(blueprint: Blueprint, *, simulated: bool = False) -> str:
    """Return the chip in Yosys's language."""
    return "\n".join(chip_modules(blueprint, simulated=simulated).values())


def chip_modules(blueprint: Blueprint, *, simulated: bool = False) -> dict[str, str]:
    """Return every kind of block of the chip in Yosys's language; those inside a block come before it."""
    return to_rtlil(Chip(blueprint, simulated=simulated))


def to_verilog(text: str) -> str:
    """Return Verilog for a text in Yosys's language, from the cache if it was made before."""

    def make(work: Path) -> None:
        (work / "chip.il").write_text(text, encoding="utf-8")
        write = "write_verilog -noattr -norename chip.v"
        # Banks are written before they are read: what they begin with, a line a word, can be left out.
        blank = "delete t:$meminit t:$meminit_v2"
        yosys(["read_rtlil chip.il", "proc -nomux -norom", blank, "memory_collect", write], work)
        (work / "chip.il").unlink()

    return (kept(f"verilog-{digest(text)}", make) / "chip.v").read_text(encoding="utf-8")
