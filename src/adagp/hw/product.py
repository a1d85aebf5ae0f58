"""The unit of work of the array: the matrix product behind a layer's forward pass and its two gradients.

With Y = X W, X of (rows x depth), W of (depth x columns), the three products of training

    forward          Y  = X W
    input gradient   dX = dY W^T
    weight gradient  dW = X^T dY

sum over the same rows * depth * columns triples; they differ in which matrix is the sum. A `Product` therefore keeps
the forward's sizes and names the operation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Operation(StrEnum):
    """Which of the three products of training."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


@dataclass(frozen=True)
class Window:
    """The convolution behind a product, for dataflows that use its geometry; (height, width) sizes."""

    images: int
    kernel: tuple[int, int]
    output: tuple[int, int]
    stride: tuple[int, int] = (1, 1)

    @property
    def spread(self) -> "Window":
        """The window of stride 1 whose output is this one's with zeros between, where a stride left positions out."""
        height, width = ((size - 1) * step + 1 for size, step in zip(self.output, self.stride, strict=True))
        return Window(self.images, self.kernel, (height, width))

    @property
    def rows(self) -> int:
        """Output positions of all images."""
        return self.images * self.output[0] * self.output[1]


@dataclass(frozen=True)
class Product:
    """`count` equal products of (rows x depth) by (depth x columns), named by the forward's sizes.

    `inserted_rows` are rows of zeros that an array has to run through besides the `rows` (see `gradient`).
    """

    rows: int
    depth: int
    columns: int
    count: int = 1
    window: Window | None = None
    operation: Operation = Operation.FORWARD
    inserted_rows: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all `count` products, the same for each of the three operations."""
        return self.count * self.rows * self.depth * self.columns

    def gradient(self, operation: Operation, zero_insertion: bool = False) -> "Product":
        """Return the same layer's product for another operation.

        With `zero_insertion`, the gradients of a strided convolution run over the output's gradient as convolutions see
        it: spread out to the input's resolution, with zeros between.
        """
        inserted = 0
        if zero_insertion and operation is not Operation.FORWARD and self.window is not None:
            inserted = self.window.spread.rows - self.rows
        return replace(self, operation=operation, inserted_rows=inserted)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a piece of work takes. Costs add up; `cycles` add up when the work is done one after the other.

    The buffers count words at the edge of the array; the off-chip memory (`dram`) counts words too. `own` counts
    accesses to the predictor's own memory, where a design has one.
    """

    cycles: int = 0
    macs: int = 0
    buffer_reads: int = 0
    buffer_writes: int = 0
    dram_reads: int = 0
    dram_writes: int = 0
    own_reads: int = 0
    own_writes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        if other is NOTHING:  # often, and adding is most of a simulation's time
            return self
        return Cost(
            self.cycles + other.cycles,
            self.macs + other.macs,
            self.buffer_reads + other.buffer_reads,
            self.buffer_writes + other.buffer_writes,
            self.dram_reads + other.dram_reads,
            self.dram_writes + other.dram_writes,
            self.own_reads + other.own_reads,
            self.own_writes + other.own_writes,
        )

    def __mul__(self, times: int) -> "Cost":
        return Cost(
            self.cycles * times,
            self.macs * times,
            self.buffer_reads * times,
            self.buffer_writes * times,
            self.dram_reads * times,
            self.dram_writes * times,
            self.own_reads * times,
            self.own_writes * times,
        )

    def beside(self, other: "Cost") -> "Cost":
        """Return the cost of both at the same time: the slower one's cycles, the sum of the rest."""
        return (self + other).taking(max(self.cycles, other.cycles))

    def taking(self, cycles: int) -> "Cost":
        """Return the same work in `cycles`."""
        return Cost(
            cycles,
            self.macs,
            self.buffer_reads,
            self.buffer_writes,
            self.dram_reads,
            self.dram_writes,
            self.own_reads,
            self.own_writes,
        )

    @property
    def dram_words(self) -> int:
        """Off-chip words, both ways."""
        return self.dram_reads + self.dram_writes

    @property
    def buffer_words(self) -> int:
        """Buffer accesses, both ways."""
        return self.buffer_reads + self.buffer_writes


NOTHING = Cost()


def total(costs: Iterable[Cost]) -> Cost:
    """Return the cost of doing `costs` one after the other."""
    return sum(costs, start=NOTHING)
