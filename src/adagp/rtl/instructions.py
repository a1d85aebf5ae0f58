"""A core's instructions: run a product on the array, run over elements, wait for the other core, stop.

An instruction is a word of named fields; Python packs it, gates take it apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from amaranth.hdl import unsigned
from amaranth.lib import data

LOOPS = 3
SIZE_BITS = 16
POOL_BITS = 8
"""Bits of each side of a pooled picture."""
SHIFT_BITS = 5
SCALE_BITS = 10
"""Bits of the exponent offset of a product of groups, which may be negative."""
PASS = data.StructLayout({"first": unsigned(1), "final": unsigned(1), "other": unsigned(1), "place": unsigned(2)})
"""A pass over two groups: whether it is their first and their last, which word of the stationary group it takes, and the sum of
both words' positions (0 to 2)."""


class Opcode(IntEnum):
    """What an instruction does."""

    HALT = 0
    ARRAY = 1
    ELEMENTS = 2
    MEET = 3


class Mode(IntEnum):
    """How numbers move through the array: which matrix is the sum (see `adagp.hw.dataflows.systolic`)."""

    ACROSS = 0
    """Values move right, sums move down: they have the index that lies across the array."""
    DOWN = 1
    """Values move down, sums move right: they have the index that lies down the array."""
    STATIONARY = 2
    """Both values move, sums stay, and leave down the columns when they are complete."""


class Store(IntEnum):
    """A core's memories; with `REMOTE` added, those of the other core, or off-chip memory."""

    ROW_VALUES = 0
    ROW_SUMS = 1
    COLUMN_VALUES = 2
    COLUMN_SUMS = 3


REMOTE = 4


class Look(IntEnum):
    """Which neighbour in its picture a product takes instead of each pixel, down or across. Outside there are zeros."""

    HERE = 0
    """The pixel itself."""
    BEFORE = 1
    BEHIND = 2


class Start(IntEnum):
    """What the sum of an element's multiply-add starts from."""

    ZERO = 0
    FIRST = 1
    """The first operand."""
    RUNNING = 2
    """The sum so far of the innermost loop, at whose end one result is written."""


@dataclass(frozen=True)
class Encoding:
    """Widths of instruction words for a core: bits of an address, of a lane's number and of a value; whether it pools, and
    whether its values are groups of numbers."""

    address_bits: int
    lane_bits: int
    value_bits: int
    pools: bool = False
    grouped: bool = False

    @property
    def array(self) -> dict[str, int]:
        """Fields of a product.

        With `adds` its sums are added to those that are there. What streams is perhaps a picture of `lines` x `pixels`, from
        which neighbours are taken. Of groups, a `wide` matrix has magnitudes of two chunks, and the exponents of a product
        count from `scale`. Windows of outputs to pool are `height` x `width`, `cells_down` x `cells_across` of them.
        """
        sizes = dict.fromkeys(("down", "across", "stream"), SIZE_BITS)
        fields = {"mode": 2, **sizes, **dict.fromkeys(("row", "column", "stationary"), self.address_bits)}
        fields |= {"adds": 1, "look_down": 2, "look_across": 2, "lines": SIZE_BITS, "pixels": SIZE_BITS}
        if self.grouped:
            fields |= {"wide_row": 1, "wide_column": 1, "wide_stationary": 1, "scale": SCALE_BITS}
        if self.pools:
            fields |= {"pool": 1, "pool_base": self.address_bits, "height": SIZE_BITS, "width": SIZE_BITS}
            fields |= {"cells_down": POOL_BITS, "cells_across": POOL_BITS}
        return fields

    @property
    def elements(self) -> dict[str, int]:
        """Fields of a run over elements: loops, two operands and a result, and what is computed; groups have no elements."""
        if self.grouped:
            return {}
        fields = {f"count{loop}": SIZE_BITS for loop in range(LOOPS)}
        for operand in ("first", "second", "result"):
            fields |= {
                f"{operand}_memory": 3,
                f"{operand}_lane": self.lane_bits,
                f"{operand}_address": self.address_bits,
                f"{operand}_walk": 2,
                f"{operand}_wrap": self.address_bits,
            }
            fields |= {f"{operand}_stride{loop}": self.address_bits for loop in range(LOOPS)}
        fields |= {"start": 2, "relu": 1, "gate": 1, "factor": self.value_bits}
        return fields | ({"share": self.value_bits, "shift": SHIFT_BITS} if self.pools else {})

    @property
    def bits(self) -> int:
        """Width of a word; the lowest bits are the operation."""
        return 2 + max(sum(self.array.values()), sum(self.elements.values()))

    def layout(self, fields: Mapping[str, int]) -> data.StructLayout:
        """Return fields as Amaranth sees them, behind the operation."""
        return data.StructLayout({"operation": unsigned(2), **{name: unsigned(bits) for name, bits in fields.items()}})

    def pack(self, operation: Opcode, values: Mapping[str, int] | None = None) -> int:
        """Return an instruction's word. Strides may be negative: they wrap."""
        fields = {Opcode.ARRAY: self.array, Opcode.ELEMENTS: self.elements}.get(operation, {})
        word, shift = int(operation), 2
        left = dict(values or {})
        for name, bits in fields.items():
            word |= (int(left.pop(name, 0)) & ((1 << bits) - 1)) << shift
            shift += bits
        assert not left, f"an instruction has no fields {sorted(left)}"
        return word
