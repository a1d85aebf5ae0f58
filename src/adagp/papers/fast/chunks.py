"""FAST's array: cells that multiply groups in block floating point, two bits of each magnitude at a time.

A cell (an **fMAC**) takes the dot product of two groups: `g` multipliers of 2 x 2 bits, an adder tree, a shift by the chunks'
places, one addition of exponents and one into a floating-point sum. Magnitudes of more bits take several **passes**, one for
each pair of chunks: (m_X / 2) * (m_Y / 2). The index over which a product sums is therefore cut by `g`, and the rest is a
systolic array as in `dataflows`:

    cycles = folds * (load * chunks of what stays + passes * steps + rows + columns - 2)

Operands are stored as exponents and chunks with a sign bit each, so that a group takes `e + g * chunks * 3` bits; sums leave as
words of the accelerator. Converters work beside the array and cost no cycles. A convolution's groups lie along channels at each
place of the kernel, those of its weight gradient along samples. (Group size, chunks, passes and layout are the paper's, as
reported by a third party; how convolutions are grouped, the energy of a pass and that conversion is free are our choice.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adagp.core.block_format import CHUNK_BITS, BlockFormat
from adagp.errors import OptionError
from adagp.hw.array import Array
from adagp.hw.dataflows import SYSTOLIC, array_cost, fold_counts, matrices, placement_of
from adagp.hw.memory import Memory
from adagp.hw.product import RESULTS, Bits, Cost, Operation, Product

SUMMED = {"outputs": "depth", "inputs": "columns", "weights": "rows"}
"""The index over which a product sums, by the matrix that it makes."""
MULTIPLY_PICOJOULES, ADD_PICOJOULES, SUM_PICOJOULES = 0.2 * (2 * 2) / (8 * 8), 0.036, 0.9
"""Of a pass: a 2 x 2 bit multiply (Horowitz' 8-bit one by the product of widths), a 10-bit add (between his of 8 and 32 bits),
and an addition in single precision. A model of ours: the paper's table is not in the text at hand."""


@dataclass(frozen=True)
class BlockWidths:
    """The mantissa bits of a layer's weights, activations and gradients, and the groups that they are in."""

    weights: int = 4
    activations: int = 4
    gradients: int = 4
    group: int = 16
    exponent_bits: int = 4

    def block_format(self, tensor: str) -> BlockFormat:
        """Return the format of a tensor."""
        return BlockFormat(self.group, self.exponent_bits, getattr(self, tensor))

    def operands(self, operation: Operation) -> dict[str, str]:
        """Return the tensors that a product multiplies, by the matrix whose place each takes."""
        return {
            Operation.FORWARD: {"inputs": "activations", "weights": "weights"},
            Operation.INPUT_GRADIENT: {"outputs": "gradients", "weights": "weights"},
            Operation.WEIGHT_GRADIENT: {"inputs": "activations", "outputs": "gradients"},
        }[operation]

    def passes(self, operation: Operation) -> int:
        """Return how often a cell must multiply chunks for one dot product of two groups."""
        first, second = (self.block_format(tensor).chunks for tensor in self.operands(operation).values())
        return first * second

    @property
    def training_passes(self) -> int:
        """Passes of the three products of training, for each pair of groups: 3 with 2 bits everywhere, 12 with 4."""
        return sum(map(self.passes, Operation))

    @property
    def pass_picojoules(self) -> float:
        """The energy of a pass."""
        return self.group * MULTIPLY_PICOJOULES + (self.group - 1) * ADD_PICOJOULES + SUM_PICOJOULES


def chunk_serial_sum(first: Sequence[int], second: Sequence[int], bits: tuple[int, int]) -> tuple[int, int]:
    """Return the dot product of two groups of signed magnitudes as an fMAC makes it, and in how many passes."""
    total = passes = 0
    for place in range(-(-bits[0] // CHUNK_BITS)):
        for other in range(-(-bits[1] // CHUNK_BITS)):
            tree = sum(_chunk(one, place) * _chunk(two, other) for one, two in zip(first, second, strict=True))
            total += tree << CHUNK_BITS * (place + other)
            passes += 1
    return total, passes


def _chunk(number: int, place: int) -> int:
    """Return two bits of a magnitude, with its sign."""
    bits = abs(number) >> CHUNK_BITS * place & (1 << CHUNK_BITS) - 1
    return -bits if number < 0 else bits


def grouped(product: Product, widths: BlockWidths) -> Product:
    """Return a product of groups: the summed index is cut, and the words of its operands are groups."""
    result = RESULTS[product.operation]
    bits = {
        name: widths.exponent_bits + widths.group * widths.block_format(tensor).chunks * (CHUNK_BITS + 1)
        for name, tensor in widths.operands(product.operation).items()
    }
    changed = replace(product, bits=Bits(**(bits | {result: getattr(product.bits, result)}), sums=product.bits.sums))
    size, group = getattr(product, SUMMED[result]), widths.group
    if SUMMED[result] == "depth":
        return replace(changed, depth=-(-(size // product.taps) // group) * product.taps)
    if SUMMED[result] == "columns":
        return replace(changed, columns=-(-size // group))
    if product.window is None:
        return replace(changed, rows=-(-size // group))
    images, fewer = product.window.images, -(-product.window.images // group)
    return replace(
        changed,
        rows=size // images * fewer,
        inserted_rows=product.inserted_rows // images * fewer,
        window=replace(product.window, images=fewer),
    )


def chunk_serial_cycles(product: Product, array: Array, dataflow: str, widths: BlockWidths) -> tuple[int, int]:
    """Return the cycles of a product of groups in which cells multiply, and the others: loading, filling, emptying."""
    placement = placement_of(dataflow, product)
    if placement is None:
        raise OptionError(f"block floating point runs on systolic dataflows; choose from: {', '.join(SYSTOLIC)}.")
    down, across, steps, parts = fold_counts(product, array, placement)
    folds = product.count * down * across
    chunks = 1
    if placement.sum_is != "stationary":
        tensor = widths.operands(product.operation)[matrices(placement)[0]]
        chunks = widths.block_format(tensor).chunks
    loading = (chunks - 1) * array.rows
    streaming = widths.passes(product.operation) * steps
    return folds * streaming, folds * parts * (placement.overhead(array) + loading)


def chunk_serial_cost(
    product: Product, array: Array, dataflow: str, widths: BlockWidths, memory: Memory | None
) -> Cost:
    """Return the cost of a product in block floating point, from and to off-chip memory or, without `memory`, on chip.

    Its multiply-accumulates are passes of cells. Registers and network are those of one pair of chunks for each pass.
    """
    found = grouped(product, widths)
    reads = writes = 0
    if memory is not None:
        from adagp.hw.tiling import best_tiling  # numpy, which `adagp --help` does without

        tiling = best_tiling(found, array, dataflow, memory)
        found, reads, writes = replace(found, tile=tiling.tile), tiling.reads, tiling.writes
    cycles = sum(chunk_serial_cycles(found, array, dataflow, widths))
    whole = array_cost(dataflow, found, array)
    chunk = widths.exponent_bits + widths.group * (CHUNK_BITS + 1)
    narrow = dict.fromkeys(widths.operands(product.operation), chunk)
    one = array_cost(dataflow, replace(found, bits=replace(found.bits, **narrow)), array)
    passes = widths.passes(product.operation)
    cost = whole._replace(
        cycles=cycles, macs=whole.macs * passes, registers=one.registers * passes, network=one.network * passes
    )
    return cost.moving(reads, writes)
