"""Writing programs for a core: regions of its banks, products, and runs over the elements of matrices."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from adagp.errors import OptionError
from adagp.hw.product import Product
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.formats import Words
from adagp.rtl.instructions import REMOTE, Look, Mode, Opcode, Start, Store
from adagp.rtl.mapping import OPERATIONS, check_sums, find_mapping, sum_store

NO_WALK = 3


@dataclass(frozen=True)
class Matrix:
    """A matrix in a core's banks: line i in lane i modulo the lanes, `extent` words from `base` on for each line there."""

    memory: Store
    base: int
    lines: int
    extent: int
    lanes: int

    def at(self, line: int) -> tuple[int, int]:
        """Return lane and address of a line's first word."""
        return line % self.lanes, self.base + line // self.lanes * self.extent


@dataclass(frozen=True)
class Operand:
    """The words that the element unit reads or writes: a first lane and address, a stride for each loop, and the loop (if any)
    that steps through the lanes."""

    memory: int
    lane: int
    address: int
    strides: tuple[int, int, int]
    walk: int = NO_WALK
    wrap: int = 0

    def fields(self, name: str) -> dict[str, int]:
        """Return the fields of an instruction."""
        return {
            f"{name}_memory": self.memory,
            f"{name}_lane": self.lane,
            f"{name}_address": self.address,
            f"{name}_walk": self.walk,
            f"{name}_wrap": self.wrap,
            **{f"{name}_stride{loop}": stride for loop, stride in enumerate(self.strides)},
        }

    @property
    def remote(self) -> "Operand":
        """The same place in the other core."""
        return Operand(self.memory + REMOTE, self.lane, self.address, self.strides, self.walk, self.wrap)


def lines(matrix: Matrix) -> Operand:
    """Walk a matrix line by line: loop 0 over lines, loop 2 over a line's words."""
    return Operand(matrix.memory, 0, matrix.base, (0, 0, 1), walk=0, wrap=matrix.extent)


def words(matrix: Matrix) -> Operand:
    """Walk a matrix word by word: loop 0 over the words of lines, loop 2 over lines."""
    return Operand(matrix.memory, 0, matrix.base, (1, 0, 0), walk=2, wrap=matrix.extent)


@dataclass(frozen=True)
class Pool:
    """Outputs to pool as they leave the array: from `base` on in the columns' totals, windows of `height` x `width`,
    `cells` x `cells` of them in a picture."""

    base: int
    height: int
    width: int
    cells: int

    @property
    def fields(self) -> dict[str, int]:
        """Fields of an instruction."""
        sides = {"height": self.height, "width": self.width, "cells_down": self.cells, "cells_across": self.cells}
        return {"pool": 1, "pool_base": self.base, **sides}


@dataclass(frozen=True)
class Neighbours:
    """For a product that streams a picture of `lines` x `pixels`: it takes the pixel `down` lines below each one and `across`
    pixels to the right of it."""

    lines: int
    pixels: int
    down: int
    across: int

    @property
    def distance(self) -> int:
        """Words from a pixel to the one that is taken."""
        return self.down * self.pixels + self.across

    @property
    def fields(self) -> dict[str, int]:
        """Fields of an instruction."""
        looks = {-1: Look.BEFORE, 0: Look.HERE, 1: Look.BEHIND}
        sides = {"lines": self.lines, "pixels": self.pixels}
        return {"look_down": looks[self.down], "look_across": looks[self.across], **sides}


@dataclass
class Code:
    """A core's program while it is written, the regions of its banks, and the products that it runs."""

    sizes: CoreSizes
    program: list[int] = field(default_factory=list)
    products: list[tuple[str, Product]] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def matrix(self, memory: Store, lines: int, extent: int, *, own: bool = False) -> Matrix:
        """Return a new region; with `own` in the predictor's own bank."""
        lanes = self.sizes.array.rows if memory is Store.ROW_VALUES else self.sizes.array.columns
        bank, start, limit = memory.name.lower().replace("_", " "), 0, self.sizes.value_words
        if own:
            bank, start, limit = "predictor values", self.sizes.value_words, self.sizes.predictor_words
        return Matrix(memory, start + self._take(bank, -(-lines // lanes) * extent, limit), lines, extent, lanes)

    def pool(self, lines: int, height: int, width: int, cells: int) -> Pool:
        """Return new totals for pooled outputs."""
        needed = -(-lines // self.sizes.array.columns) * cells**2
        return Pool(self._take("pooled totals", needed, self.sizes.pool_words), height, width, cells)

    def _take(self, bank: str, needed: int, limit: int) -> int:
        here = self.used.get(bank, 0)
        if here + needed > limit:
            raise OptionError(
                f"the network needs more than {here + needed - 1} words in each bank of {bank}; there are {limit}. "
                "Give larger banks or a smaller network."
            )
        self.used[bank] = here + needed
        return here

    def product(
        self,
        dataflow: str,
        operation: str,
        sizes: tuple[int, int, int],
        matrices: Mapping[str, Matrix],
        pool: Pool | None = None,
        *,
        adds: bool = False,
        neighbours: Neighbours | None = None,
    ) -> Matrix:
        """Run an operation of the forward product of `sizes` (rows, depth, columns); return where its sums are.

        `matrices` are the factors, by the names x, w and y of the forward product's matrices. Sums start at 0, as they are read
        before the next product; with `adds` they start from the stored sums. `neighbours` apply to the streaming factor: the
        values in the rows' banks, or those in the columns' banks if sums are in the rows' banks.
        """
        mapping = find_mapping(dataflow, operation, *sizes)
        check_sums(self.sizes, mapping)
        self.products.append((dataflow, Product(*sizes).gradient(OPERATIONS[operation])))
        bases = {
            role: 0 if name == mapping.result else matrices[name].base
            for role in ("row", "column", "stationary")
            for name in [getattr(mapping, role)]
        }
        fields = dict(zip(("down", "across", "stream"), mapping.sizes, strict=True)) | {"mode": mapping.mode} | bases
        if neighbours is not None:
            streams = "column" if mapping.mode is Mode.DOWN else "row"
            fields |= neighbours.fields | {streams: fields[streams] + neighbours.distance}
        fields |= {"adds": adds} | (pool.fields if pool is not None else {})
        self.program.append(self.sizes.encoding.pack(Opcode.ARRAY, fields))
        role = mapping.result_role
        lines, extent = mapping.extents(role)
        array = self.sizes.array
        return Matrix(sum_store(role), 0, lines, extent, array.rows if role == "row" else array.columns)

    def elements(
        self,
        counts: tuple[int, int, int],
        result: Operand,
        first: Operand | None = None,
        second: Operand | None = None,
        *,
        factor: float = 0.0,
        running: bool = False,
        relu: bool = False,
        gate: bool = False,
        mean_of: int = 1,
    ) -> None:
        """Run over elements: first + factor * second, or the running sum of factor * second over loop 2; its mean, if it is
        the sum of more than one."""
        if second is None:  # any word that can be read, times zero
            away = first is not None and first.memory == Store.ROW_VALUES
            second = Operand(Store.COLUMN_VALUES if away else Store.ROW_VALUES, 0, 0, (0, 0, 0))
        assert first is None or first.memory != second.memory, "a bank has one port to read"
        begin = Start.RUNNING if running else Start.ZERO if first is None else Start.FIRST
        what = {"start": begin, "relu": relu, "gate": gate, "factor": int(self.sizes.single.encode(factor))}
        if mean_of > 1:
            share, shift = self.sizes.single.share(mean_of)
            what |= {"share": share, "shift": shift}
        loops = {f"count{loop}": count for loop, count in enumerate(counts)}
        other = Operand(Store.COLUMN_SUMS, 0, 0, (0, 0, 0))
        operands = (first or other).fields("first") | second.fields("second") | result.fields("result")
        self.program.append(self.sizes.encoding.pack(Opcode.ELEMENTS, loops | operands | what))

    def meet(self) -> None:
        """Wait for the other core."""
        self.program.append(self.sizes.encoding.pack(Opcode.MEET))

    def halt(self) -> None:
        """Stop."""
        self.program.append(self.sizes.encoding.pack(Opcode.HALT))


Contents = list[tuple[int, Matrix, Words]]
"""What the host writes: for each matrix its core, its region, and its words line by line."""


def zeros(matrix: Matrix) -> Words:
    """Return a matrix of zeros."""
    return np.zeros((matrix.lines, matrix.extent), np.int64)
