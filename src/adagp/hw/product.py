"""The array's unit of work: the matrix product behind a layer's forward pass and its two gradients.

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
from math import gcd
from operator import add
from typing import NamedTuple


class Operation(StrEnum):
    """Which of the three products of training."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


AXES = {"inputs": ("rows", "depth"), "weights": ("depth", "columns"), "outputs": ("rows", "columns")}
"""The two indices of each matrix."""

RESULTS = {Operation.FORWARD: "outputs", Operation.INPUT_GRADIENT: "inputs", Operation.WEIGHT_GRADIENT: "weights"}
"""The matrix that each operation computes, or whose gradient it computes."""


@dataclass(frozen=True)
class Bits:
    """The width of a product's words, by the matrix whose place they take; partial sums have a width of their own."""

    inputs: int = 16
    weights: int = 16
    outputs: int = 16
    sums: int = 32


@dataclass(frozen=True)
class Window:
    """The convolution behind a product, for what depends on its geometry; (height, width) sizes.

    `input_size` is the size of the images without padding; None if unknown.
    """

    images: int
    kernel: tuple[int, int]
    output: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    input_size: tuple[int, int] | None = None

    @property
    def upsampled(self) -> "Window":
        """The window of stride 1 whose output is this one's, with zeros at the positions that the stride skips."""
        height, width = ((size - 1) * step + 1 for size, step in zip(self.output, self.stride, strict=True))
        return replace(self, output=(height, width), stride=(1, 1))

    @property
    def rows(self) -> int:
        """Output positions of all images."""
        return self.images * self.output[0] * self.output[1]

    def touched(self, outputs: int, axis: int) -> int:
        """Return an upper bound of the input positions along an axis that `outputs` neighbouring outputs read.

        Positions that no window covers do not count (but for a few where dilated windows overlap), nor does padding.
        """
        kernel, stride, dilation = self.kernel[axis], self.stride[axis], self.dilation[axis]
        span = (outputs - 1) * stride + (kernel - 1) * dilation
        reach = min(outputs * kernel, span // gcd(stride, dilation) + 1)
        return reach if self.input_size is None else min(reach, self.input_size[axis])


@dataclass(frozen=True)
class Product:
    """`count` equal products of (rows x depth) by (depth x columns), named by the forward's sizes.

    `inserted_rows` are rows of zeros that an array runs through in addition to the `rows` (see `gradient`). An `ordinary`
    gradient runs like any forward product of its sizes, instead of in the place that the forward pass gave its matrices.
    `tile` is the (rows, depth, columns) that are on chip at a time; None: all. `output_words` are the distinct words of one
    product's outputs where positions overlap, as in a transposed convolution.
    """

    rows: int
    depth: int
    columns: int
    count: int = 1
    window: Window | None = None
    operation: Operation = Operation.FORWARD
    inserted_rows: int = 0
    bits: Bits = Bits()
    ordinary: bool = False
    tile: tuple[int, int, int] | None = None
    output_words: int | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all `count` products, the same for each of the three operations."""
        return self.count * self.rows * self.depth * self.columns

    @property
    def kernel_taps(self) -> int:
        """Kernel positions of a channel."""
        return 1 if self.window is None else self.window.kernel[0] * self.window.kernel[1]

    def gradient(self, operation: Operation, zero_insertion: bool = False, ordinary: bool = False) -> "Product":
        """Return the same layer's product for another operation.

        With `zero_insertion`, the gradients of a strided convolution run over the output's gradient as convolutions see
        it: upsampled to the input's resolution, with zeros between. With `ordinary` they run as ordinary products.
        """
        inserted = 0
        if zero_insertion and operation is not Operation.FORWARD and self.window is not None:
            inserted = self.window.upsampled.rows - self.rows
        return replace(self, operation=operation, inserted_rows=inserted, ordinary=ordinary)


class Cost(NamedTuple):
    """The cost of a piece of work. Costs add up; `cycles` add up when the work is done sequentially.

    Memories count bits: the global buffer, the off-chip memory (`dram`), and the predictor's own memory (`own`), where a
    design has one. `registers` are bits read and written in the PEs, `network` bits times PEs that they pass on.
    It is a tuple because a simulation makes thousands, and tuples are made several times as fast as dataclasses.
    """

    cycles: int = 0
    macs: int = 0
    buffer_reads: int = 0
    buffer_writes: int = 0
    dram_reads: int = 0
    dram_writes: int = 0
    own_reads: int = 0
    own_writes: int = 0
    registers: int = 0
    network: int = 0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]  # costs add up, they are not joined
        return self if other is NOTHING else Cost(*map(add, self, other))  # nothing is added often

    def __mul__(self, times: int) -> "Cost":  # type: ignore[override]
        return Cost(*[value * times for value in self])

    def with_cycles(self, cycles: int) -> "Cost":
        """Return the same work, done in `cycles`."""
        return self._replace(cycles=cycles)

    def moving(self, reads: int, writes: int) -> "Cost":
        """Return the same work with more bits read from and written to off-chip memory, which pass through the buffer."""
        cycles, macs, buffer_reads, buffer_writes, dram_reads, dram_writes, *rest = self
        return Cost(
            cycles, macs, buffer_reads + writes, buffer_writes + reads, dram_reads + reads, dram_writes + writes, *rest
        )

    @property
    def dram_bits(self) -> int:
        """Off-chip bits, both ways."""
        return self.dram_reads + self.dram_writes

    @property
    def buffer_bits(self) -> int:
        """Bits through the buffer's port, both ways."""
        return self.buffer_reads + self.buffer_writes


NOTHING = Cost()


@dataclass(frozen=True)
class AccessEnergies:
    """Picojoules of a bit read from and written to the off-chip memory and the buffer, and of a cycle of the chip."""

    dram_read: float = 0.0
    dram_write: float = 0.0
    buffer_read: float = 0.0
    buffer_write: float = 0.0
    cycle: float = 0.0


FREE_ACCESSES = AccessEnergies()


def total(costs: Iterable[Cost]) -> Cost:
    """Return the cost of doing `costs` one after the other."""
    terms = list(costs)
    return Cost(*map(sum, zip(*terms, strict=True))) if terms else NOTHING
