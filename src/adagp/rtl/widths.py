"""Verilog without implicit widths: every operator of a Yosys design gets operands as wide as what it computes with.

Yosys writes `a + b` for numbers of any width and leaves it to the language to extend them, which linters rightly distrust.
This runs in Yosys's own process, between its passes.
"""

from typing import Any

SAME_AS_RESULT = frozenset({"$add", "$sub", "$mul", "$and", "$or", "$xor", "$xnor", "$not", "$neg", "$pos"})
"""Operators whose operands may be extended, or cut, to the width of the result."""
COMPARISONS = frozenset({"$eq", "$ne", "$lt", "$le", "$ge", "$gt"})
RIGHT_SHIFTS = frozenset({"$shr", "$sshr"})


def equal_widths(design: Any) -> None:
    """Extend the operands of all cells of a design, with their sign where the cell is one of signed numbers."""
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
