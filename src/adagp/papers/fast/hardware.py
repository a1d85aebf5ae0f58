"""FAST's accelerator: cells that multiply groups in block floating point, two bits of each magnitude at a time.

A cell (an **fMAC**) takes the dot product of two groups: `g` multipliers of 2 x 2 bits, an adder tree, a shift by the chunks'
places, one addition of exponents and one into a floating-point sum. Magnitudes of more bits take several **passes**, one for
each pair of chunks: (m_X / 2) * (m_Y / 2). The index over which a product sums is therefore cut by `g`, and the rest is a
systolic array as in `dataflows`:

    cycles = folds * (load * chunks of what stays + passes * steps + rows + columns - 2)

for products that are not cut through time; a cut costs each fold all but its steps once more, and loads a stationary sum.
Operands are stored as exponents and chunks with a sign bit each, so that a group takes `e + g * chunks * 3` bits; sums leave as
words of the accelerator. Converters overlap with the array and cost no cycles. Groups of a convolution lie along channels, at
each place of the kernel, those of its weight gradient along samples.

The design `fast` computes a run in the widths that it was recorded with, and in 4 bits otherwise; `dense-16` and `dense-32` are
the same run in words of N bits. None has extra hardware for predictions. A cell of `fast` has 16 small multipliers: equal
arrays are not of equal area. (Group size, chunks, passes and layout are the paper's, as
reported by a third party; how convolutions are grouped, the energy of a pass and that conversion is free are our choice.)
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from adagp.core.block_format import CHUNK_BITS, BlockFormat
from adagp.core.plan import Phase
from adagp.core.precision import parse_precision
from adagp.errors import OptionError
from adagp.hw.dataflows import SYSTOLIC, Array, Memory, array_cost, fold_counts, matrices, placement_of
from adagp.hw.product import RESULTS, Bits, Cost, Operation, Product
from adagp.hw.runs import Figures, Run, RunRecording
from adagp.hw.simulate import DESIGNS, Design, run_in_sequence

SUMMED = {"outputs": "depth", "inputs": "columns", "weights": "rows"}
"""The index over which a product sums, by the matrix that it makes."""
MULTIPLY_PICOJOULES, ADD_PICOJOULES, SUM_PICOJOULES = 0.2 * (2 * 2) / (8 * 8), 0.036, 0.9
"""Energies of a pass: a 2 x 2 bit multiplication (Horowitz's 8-bit one, scaled by the product of widths), a 10-bit addition
(between his 8-bit and 32-bit ones), a single-precision addition. A model of ours: the paper's table was not available."""


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
    def mac_picojoules(self) -> float:
        """The energy of a pass, which counts as one multiply-accumulate."""
        return self.group * MULTIPLY_PICOJOULES + (self.group - 1) * ADD_PICOJOULES + SUM_PICOJOULES

    def cost(self, product: Product, array: Array, dataflow: str, memory: Memory | None) -> Cost:
        """Return the cost of a product, from and to off-chip memory or, without `memory`, on chip."""
        return chunk_serial_cost(product, array, dataflow, self, memory)


def grouped(product: Product, widths: BlockWidths) -> Product:
    """Return a product of groups: the summed index is cut, and the words of its operands are groups."""
    result = RESULTS[product.operation]
    bits = {name: widths.block_format(tensor).group_bits for name, tensor in widths.operands(product.operation).items()}
    changed = replace(product, bits=Bits(**(bits | {result: getattr(product.bits, result)}), sums=product.bits.sums))
    size, group = getattr(product, SUMMED[result]), widths.group
    if SUMMED[result] == "depth":
        return replace(changed, depth=-(-(size // product.kernel_taps) // group) * product.kernel_taps)
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
    return folds * streaming, folds * (placement.overhead(array, parts) + parts * loading)


def chunk_serial_cost(
    product: Product, array: Array, dataflow: str, widths: BlockWidths, memory: Memory | None
) -> Cost:
    """Return the cost of a product in block floating point, from and to off-chip memory or, without `memory`, on chip.

    Its multiply-accumulates are passes of cells. Registers and network are those of one pair of chunks for each pass.
    """
    groups = grouped(product, widths)
    reads = writes = 0
    if memory is not None:
        from adagp.hw.tiling import best_tiling  # numpy, which `adagp --help` does without

        tiling = best_tiling(groups, array, dataflow, memory)
        groups, reads, writes = replace(groups, tile=tiling.tile), tiling.reads, tiling.writes
    cycles = sum(chunk_serial_cycles(groups, array, dataflow, widths))
    whole = array_cost(dataflow, groups, array)
    chunk = widths.exponent_bits + widths.group * (CHUNK_BITS + 1)
    narrow = dict.fromkeys(widths.operands(product.operation), chunk)
    single = array_cost(dataflow, replace(groups, bits=replace(groups.bits, **narrow)), array)
    passes = widths.passes(product.operation)
    cost = whole._replace(
        cycles=cycles, macs=whole.macs * passes, registers=single.registers * passes, network=single.network * passes
    )
    return cost.moving(reads, writes)


FLOAT_BITS = 32
"""Mantissa bits that stand for single precision in a run's record."""
_SHARE = re.compile(r"share_w(\d+)a(\d+)(?:g(\d+))?")
Shares = Mapping[BlockWidths, float]


@dataclass(frozen=True)
class WidthShares:
    """The shares of batches by mantissa widths, for each site: of batches with a gradient (`backward`), and of those without.

    A layer that is not a site of the run, such as an attention product, has the mean shares of all sites.
    """

    backward: Mapping[str, Shares]
    forward: Mapping[str, Shares]

    def of(self, layer: str, phase: Phase) -> Shares:
        """Return the shares of a layer in the batches of a phase; they add up to 1."""
        first, second = (self.forward, self.backward) if phase is Phase.GP else (self.backward, self.forward)
        table = first or second
        return table.get(layer) or mean_shares(table.values())

    @property
    def all(self) -> list[BlockWidths]:
        """All widths that occur, the least first."""
        tables = (*self.backward.values(), *self.forward.values())
        return sorted(
            {widths for shares in tables for widths in shares}, key=attrgetter("weights", "activations", "gradients")
        )


FIXED = WidthShares({"": {BlockWidths(): 1.0}}, {})
"""Four bits everywhere: what is assumed of a run that was not recorded."""


def mean_shares(tables: Iterable[Shares]) -> Shares:
    """Return the mean of several shares."""
    mean: dict[BlockWidths, float] = defaultdict(float)
    known = list(tables)
    for shares in known:
        for widths, share in shares.items():
            mean[widths] += share / len(known)
    return dict(mean)


def recorded_widths(epochs: Iterable[tuple[int, Figures]], group: int, exponent_bits: int) -> WidthShares | None:
    """Return the shares over epochs, each given by its batches and the figures of its sites; None if they have none."""
    counts: dict[bool, dict[str, dict[BlockWidths, float]]] = {True: {}, False: {}}  # by whether there is a gradient
    for batches, sites in epochs:
        for site, figures in sites.items():
            for name, share in figures.items():
                match = _SHARE.fullmatch(name)
                if match is None or not share:
                    continue
                weights, activations, gradients = (int(bits or match[2]) for bits in match.groups())
                widths = BlockWidths(weights, activations, gradients, group, exponent_bits)
                table = counts[match[3] is not None].setdefault(site, {})
                table[widths] = table.get(widths, 0.0) + share * batches
    return WidthShares(_shares(counts[True]), _shares(counts[False])) if any(counts.values()) else None


def _shares(counts: Mapping[str, Mapping[BlockWidths, float]]) -> dict[str, Shares]:
    return {
        site: {widths: count / sum(table.values()) for widths, count in table.items()} for site, table in counts.items()
    }


def run_widths(run: Run) -> WidthShares:
    """Return the widths in which a run was computed, 4 bits unless it was recorded; raise for one in single precision."""
    widths: WidthShares | None = FIXED
    if isinstance(run.recorded, WidthShares):
        widths = run.recorded
    elif isinstance(run.recorded, RunRecording):
        precision = parse_precision(str(run.recorded.config.get("precision", "fp32")))
        shared = precision.shared_exponent
        widths = None if shared is None else recorded_widths(run.recorded.epochs, *shared)
    if widths is None or any(each.weights == FLOAT_BITS for each in widths.all):
        raise OptionError(
            "the run was trained in single precision, at least in part, which the design 'fast' does not support; replay "
            "a run that was trained with --precision bfp4, fast or the like."
        )
    return widths


_FAST = Design(run_in_sequence, predictor_memory=False)
DESIGNS.add("fast", replace(_FAST, arithmetic=run_widths))
DESIGNS.add("dense-16", replace(_FAST, word_bits=16))
DESIGNS.add("dense-32", replace(_FAST, word_bits=32))
