"""From Yosys's own language to Verilog that linters accept: no implicit widths, no `always @*` of constants alone.

Yosys writes `a + b` for numbers of any width and relies on Verilog's implicit extension, of which linters warn. So
`equal_widths`, which runs between Yosys's passes, extends the operands of every operator to the width that it computes with.
"""

import re
from pathlib import Path
from typing import Any

from adagp.rtl.tools import EQUAL_WIDTHS, cached_folder, digest, yosys

HEADER = """\
// Verilog-2005, written by adagp and Yosys. Clean under `verilator --lint-only -Wall` and `iverilog -g2005 -Wall`, but for two
// classes of style that Yosys cannot avoid: all modules are in one file, and operators compute bits that nothing reads, such as
// the fraction that rounding cuts off.
/* verilator lint_off DECLFILENAME */
/* verilator lint_off UNUSEDSIGNAL */
"""
DECLARED = r"^(  reg (?:signed )?(?:\[\S+\] )?)(\S+|\\\S+ ) = (\S+);$"
"""A register's declaration with its initial value."""


def to_verilog(text: str) -> str:
    """Return Verilog for a text in Yosys's language, from the cache if it was made before."""
    # Banks are written before they are read, so their initial values, a line per word, can be left out.
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


SAME_AS_RESULT = frozenset({"$add", "$sub", "$mul", "$and", "$or", "$xor", "$xnor", "$not", "$neg", "$pos"})
"""Operators whose operands may be extended, or cut, to the width of the result."""
COMPARISONS = frozenset({"$eq", "$ne", "$lt", "$le", "$ge", "$gt"})
RIGHT_SHIFTS = frozenset({"$shr", "$sshr"})


def equal_widths(design: Any) -> None:
    """Extend the operands of all cells of a design; those of signed cells with their sign."""
    from pyosys import libyosys

    for module in list(design.modules_.values()):
        for cell in list(module.cells_.values()):
            kind = cell.type.str()
            if kind == "$logic_not":  # of several bits: whether all are zero
                cell.type = libyosys.IdString("$eq")
                cell.setPort(libyosys.IdString("\\B"), libyosys.SigSpec(libyosys.Const(0, 1)))
                for name in ("\\B_WIDTH", "\\B_SIGNED"):
                    cell.setParam(libyosys.IdString(name), cell.getParam(libyosys.IdString("\\A_SIGNED")))
                kind = "$eq"
            if kind in SAME_AS_RESULT:
                _extend(libyosys, cell, _width(libyosys, cell, "\\Y"))
            elif kind in COMPARISONS:
                _extend(libyosys, cell, max(_width(libyosys, cell, port) for port in ("\\A", "\\B")))
            elif kind in RIGHT_SHIFTS:
                _widen_shift(libyosys, module, cell)


def _width(libyosys: Any, cell: Any, port: str) -> int:
    return int(cell.getPort(libyosys.IdString(port)).size())


def _extend(libyosys: Any, cell: Any, width: int, ports: tuple[str, ...] = ("\\A", "\\B")) -> None:
    for port in ports:
        name = libyosys.IdString(port)
        if cell.hasPort(name):
            signal = cell.getPort(name)
            signed = cell.getParam(libyosys.IdString(f"{port}_SIGNED")).as_bool()
            signal.extend_u0(width, signed)
            cell.setPort(name, signal)
            cell.setParam(libyosys.IdString(f"{port}_WIDTH"), libyosys.Const(width, 32))


def _widen_shift(libyosys: Any, module: Any, cell: Any) -> None:
    """Let a right shift compute as many bits as its operand or its result has, whichever are more, and take the lowest."""
    result = libyosys.IdString("\\Y")
    wanted = cell.getPort(result)
    width = max(_width(libyosys, cell, "\\A"), wanted.size())
    _extend(libyosys, cell, width, ("\\A",))
    if width > wanted.size():
        shifted = libyosys.SigSpec(module.addWire(module.uniquify(libyosys.IdString("$shifted")), width))
        cell.setPort(result, shifted)
        cell.setParam(libyosys.IdString("\\Y_WIDTH"), libyosys.Const(width, 32))
        module.connect(wanted, shifted.extract(0, wanted.size()))
