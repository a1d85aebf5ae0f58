"""Writing programs for a core: regions of its banks, products, and runs over the elements of matrices."""

from dataclasses import dataclass, field

import numpy as np

from adagp.errors import OptionError
from adagp.hw.product import Operation, Product
from adagp.rtl.formats import Words
from adagp.rtl.instructions import REMOTE, Mode, Opcode, Start, Store
from adagp.rtl.sizes import CoreSizes

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
    """What the element unit walks over: from a lane and an address, by strides of the loops; one loop may walk the lanes."""

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


@dataclass
class Code:
    """A core's program while it is written, the regions of its banks, and the products that it runs."""

    sizes: CoreSizes
    program: list[int] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def matrix(self, memory: Store, lines: int, extent: int, *, own: bool = False) -> Matrix:
        """Return a new region; with `own` in the predictor's own bank."""
        lanes = self.sizes.array.rows if memory in (Store.ROW_VALUES, Store.ROW_SUMS) else self.sizes.array.columns
        bank, start, limit = memory.name.lower().replace("_", " "), 0, self.sizes.value_words
        if own:
            bank, start, limit = "predictor values", self.sizes.value_words, self.sizes.predictor_words
        if memory in (Store.ROW_SUMS, Store.COLUMN_SUMS):
            limit = self.sizes.sum_words
        here = self.used.get(bank, 0)
        needed = -(-lines // lanes) * extent
        if here + needed > limit:
            raise OptionError(
                f"the network needs more than {here + needed - 1} words in each bank of {bank}; there are {limit}. "
                "Give larger banks or a smaller network."
            )
        # Sums are read before the next product: each of them begins at 0.
        if memory not in (Store.ROW_SUMS, Store.COLUMN_SUMS):
            self.used[bank] = here + needed
        return Matrix(memory, start + here, lines, extent, lanes)

    def array(
        self, mode: Mode, down: int, across: int, stream: int, row: Matrix, column: Matrix, stays: Matrix
    ) -> None:
        """Run a product, weight stationary: the operation that has this mode."""
        operation = {
            Mode.ACROSS: Operation.FORWARD,
            Mode.DOWN: Operation.INPUT_GRADIENT,
            Mode.STATIONARY: Operation.WEIGHT_GRADIENT,
        }[mode]
        self.products.append(Product(stream, down, across).gradient(operation))
        bases = {"row": row.base, "column": column.base, "stationary": stays.base}
        sizes = {"mode": mode, "down": down, "across": across, "stream": stream}
        self.program.append(self.sizes.encoding.pack(Opcode.ARRAY, sizes | bases))

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
    ) -> None:
        """Run over elements: first + factor * second, or the running sum of factor * second over loop 2."""
        if second is None:  # any place that is read without harm, times zero
            away = first is not None and first.memory == Store.ROW_VALUES
            second = Operand(Store.COLUMN_VALUES if away else Store.ROW_VALUES, 0, 0, (0, 0, 0))
        assert first is None or first.memory != second.memory, "a bank has one port to read"
        begin = Start.RUNNING if running else Start.ZERO if first is None else Start.FIRST
        what = {"start": begin, "relu": relu, "gate": gate, "factor": int(self.sizes.number.encode(factor))}
        loops = {f"count{loop}": count for loop, count in enumerate(counts)}
        other = Operand(Store.COLUMN_SUMS, 0, 0, (0, 0, 0))
        places = (first or other).fields("first") | second.fields("second") | result.fields("result")
        self.program.append(self.sizes.encoding.pack(Opcode.ELEMENTS, loops | places | what))

    def meet(self) -> None:
        """Wait for the other core."""
        self.program.append(self.sizes.encoding.pack(Opcode.MEET))

    def halt(self) -> None:
        """Stop."""
        self.program.append(self.sizes.encoding.pack(Opcode.HALT))


Contents = list[tuple[int, Matrix, Words]]
"""What the host writes: a core, a matrix there, and its words, a line each."""


def zeros(matrix: Matrix) -> Words:
    """Return a matrix of zeros."""
    return np.zeros((matrix.lines, matrix.extent), np.int64)
