"""Liberty files, as far as gates need them: the logic of each cell, and its pins."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from adagp.errors import OptionError

_TOKENS = re.compile(r'/\*.*?\*/|\\\n|"[^"]*"|[{}():;,]|[^\s{}():;,"]+', re.DOTALL)


@dataclass
class LibertyGroup:
    """`kind(name) { ... }`: its simple attributes and the groups inside it."""

    kind: str
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    groups: list["LibertyGroup"] = field(default_factory=list)

    def inside(self, *kinds: str) -> list["LibertyGroup"]:
        """Return the groups of some kinds."""
        return [group for group in self.groups if group.kind in kinds]


@dataclass(frozen=True)
class LibraryCell:
    """A cell's logic: `functions` of its outputs over its inputs; of a flip-flop also over its state, `state`, whose next value
    is `next_state` (with the rising edge of `clock`). `loads` are its inputs' but for the clock's; its output may drive
    `drives`."""

    name: str
    inputs: tuple[str, ...]
    functions: dict[str, str]
    state: str = ""
    next_state: str = ""
    clock: str = ""
    area: float = 0.0
    loads: Mapping[str, float] = field(default_factory=dict)
    drives: float = 0.0

    @property
    def is_buffer(self) -> bool:
        """Whether its one output is its one input."""
        if self.state or len(self.inputs) != 1:
            return False
        return [truth_table(function, self.inputs) for function in self.functions.values()] == [0b10]


MOST_INPUTS = 16
"""Inputs of a function at most: its table of values has a bit for each of their combinations."""
LONGEST_FUNCTION = 10_000
DEEPEST = 128
"""Characters and nested brackets of a function at most."""
_LOGIC = re.compile(r"[A-Za-z_]\w*|[01]|[!'&*|+^()]")


def parse_liberty(text: str) -> LibertyGroup:
    """Return the library as groups."""
    if text.rfind("/*") > text.rfind("*/"):
        raise OptionError("this is not a Liberty file: it has a comment that does not end.")
    tokens = [token for token in _TOKENS.findall(text) if not token.startswith(("/*", "\\"))]
    top = LibertyGroup("file", "")
    stack, position = [top], 0
    while stack and position < len(tokens):
        following = tokens[position + 1 : position + 2]
        if tokens[position] == "}":
            stack.pop()
            position += 1
        elif following == [":"]:
            position = _read_attribute(tokens, position, stack[-1])
        elif following == ["("]:
            position = _read_group(tokens, position, stack)
        else:
            position += 1
    if not top.groups or top.groups[0].kind != "library":
        raise OptionError("this is not a Liberty file: it has no library.")
    return top.groups[0]


def _read_attribute(tokens: list[str], position: int, group: LibertyGroup) -> int:
    """Read `name : value;` into a group; return the position after it."""
    end = tokens.index(";", position) if ";" in tokens[position : position + 40] else position + 3
    group.attributes[tokens[position]] = " ".join(tokens[position + 2 : end]).strip('"')
    return end + 1


def _read_group(tokens: list[str], position: int, stack: list[LibertyGroup]) -> int:
    """Begin the group `kind(name) {`, or skip the complex attribute `kind(values);`; return the position after it."""
    try:
        end = tokens.index(")", position)
    except ValueError:
        raise OptionError(
            f"this is not a Liberty file: the bracket behind '{tokens[position][:40]}' does not end."
        ) from None
    if tokens[end + 1 : end + 2] != ["{"]:
        return end + 1
    name = " ".join(token.strip('"') for token in tokens[position + 2 : end] if token != ",")
    group = LibertyGroup(tokens[position], name)
    stack[-1].groups.append(group)
    stack.append(group)
    return end + 2


def nominal_volts(text: str) -> float | None:
    """Return the voltage that a library is for; None if it has no such attribute."""
    match = re.search(r"\bnom_voltage\s*:\s*(\d+(?:\.\d+)?)", text)
    return None if match is None else float(match[1])


@cache
def read_cells(text: str) -> dict[str, LibraryCell]:
    """Return the cells of a library whose logic is stated: gates, and flip-flops of a rising edge without set and reset."""
    cells = map(_read_cell, parse_liberty(text).inside("cell"))
    return {cell.name: cell for cell in cells if cell is not None}


def _read_cell(group: LibertyGroup) -> LibraryCell | None:
    pins = {pin.name: pin.attributes for pin in group.inside("pin")}
    inputs = tuple(name for name, pin in pins.items() if pin.get("direction") == "input")
    gate = LibraryCell(
        group.name,
        inputs,
        functions={name: pin["function"] for name, pin in pins.items() if "function" in pin},
        area=_amount(group, group.attributes, "area"),
        loads={name: _amount(group, pins[name], "capacitance") for name in inputs},
        drives=max((_amount(group, pin, "max_capacitance") for pin in pins.values()), default=0.0),
    )
    storage = group.inside("ff", "latch", "statetable")
    cell = _flip_flop(gate, storage[0]) if storage else gate
    return cell if cell is not None and _is_stated(cell) else None


def _amount(group: LibertyGroup, attributes: Mapping[str, str], name: str) -> float:
    """Return a number of a cell or a pin, 0 if there is none."""
    text = attributes.get(name, "0")
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 1e18:
        raise OptionError(f"{name} of the cell '{group.name}' is '{text[:40]}'; it must be a number from 0 to 1e+18.")
    return amount


def _is_stated(cell: LibraryCell) -> bool:
    """Return whether the logic of a cell is a function of its inputs and its state; raise on one that cannot be read."""
    known = {*cell.inputs, *([cell.state] if cell.state else [])}
    for function in (*cell.functions.values(), *([cell.next_state] if cell.state else [])):
        if len(function) > LONGEST_FUNCTION or function.count("(") + function.count("!") > DEEPEST:
            raise OptionError(f"a function of the cell '{cell.name}' is too long, or nested too deeply.")
        names = support(function)
        if len(names) > MOST_INPUTS:
            raise OptionError(
                f"a function of the cell '{cell.name}' has {len(names)} inputs; at most {MOST_INPUTS} are allowed."
            )
        if not known.issuperset(names):
            return False
        try:
            truth_table(function, names)
        except (KeyError, ValueError):
            raise OptionError(
                f"the function '{function[:40]}' of the cell '{cell.name}' cannot be read; it must be made of pins, 0, 1, "
                "brackets and ! ' & * | + ^."
            ) from None
    return True


def _flip_flop(gate: LibraryCell, storage: LibertyGroup) -> LibraryCell | None:
    about, names = storage.attributes, storage.name.split()
    stated = {"clocked_on", "next_state"} <= about.keys() and not {"clear", "preset"} & about.keys()
    if storage.kind != "ff" or len(names) != 2 or not stated:
        return None
    state, inverse = names
    clock = about["clocked_on"].strip("() ")
    return replace(
        gate,
        functions={pin: _with_state(logic, state, inverse) for pin, logic in gate.functions.items()},
        state=state,
        next_state=about["next_state"],
        clock=clock,
        loads={pin: load for pin, load in gate.loads.items() if pin != clock},
    )


def _with_state(function: str, state: str, inverse: str) -> str:
    """Return a function with the inverse of the state written as `(!state)`."""
    tokens = _LOGIC.findall(function)
    return " ".join(f"(!{state})" if token == inverse else token for token in tokens) if inverse in tokens else function


def truth_table(function: str, inputs: tuple[str, ...]) -> int:
    """Return the values of a function as bits: bit i for the inputs whose bits are i, the first input the lowest."""
    rows = 1 << len(inputs)
    columns = {name: sum(1 << row for row in range(rows) if row >> index & 1) for index, name in enumerate(inputs)}
    logic = _Function(function, columns, (1 << rows) - 1)
    table = logic.value()
    if logic.position != len(logic.tokens):
        raise ValueError(f"'{function}' is not a function")
    return table


def support(function: str) -> tuple[str, ...]:
    """Return the names in a function, each once."""
    return tuple(dict.fromkeys(token for token in _LOGIC.findall(function) if token[0].isalpha() or token[0] == "_"))


class _Function:
    """Evaluates a function in Liberty's language for all inputs at once: ! and ' bind first, then ^, & (*, a blank), | (+)."""

    def __init__(self, text: str, columns: dict[str, int], ones: int) -> None:
        self.tokens = _LOGIC.findall(text)
        self.columns, self.ones, self.position = columns, ones, 0

    def value(self) -> int:
        """Return the value of a sum of products."""
        table = self._all_of()
        while self._next() in ("|", "+"):
            self.position += 1
            table |= self._all_of()
        return table

    def _next(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _all_of(self) -> int:
        table = self._odd_of()
        while self._next() not in ("", ")", "|", "+"):
            self.position += self._next() in ("&", "*")
            table &= self._odd_of()
        return table

    def _odd_of(self) -> int:
        table = self._operand()
        while self._next() == "^":
            self.position += 1
            table ^= self._operand()
        return table

    def _operand(self) -> int:
        token = self._next()
        self.position += 1
        if token == "!":
            return self.ones & ~self._operand()
        if token == "(":
            table = self.value()
            self.position += 1
        elif token in ("0", "1"):
            table = self.ones * int(token)
        else:
            table = self.columns[token]
        while self._next() == "'":
            self.position += 1
            table = self.ones & ~table
        return table
