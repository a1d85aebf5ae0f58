"""FAST's block floating point in hardware: the number format, its processing element (the fMAC) in gates, the model of both,
exact to the bit, and the same product on a simulated chip.

Groups lie along the index over which a product sums. A matrix in groups is an array of values, one or two for each group:
see `GroupFormat`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Const, Module, Mux, Signal, signed
from numpy.typing import NDArray

from adagp.core.block_format import CHUNK_BITS
from adagp.errors import OptionError
from adagp.hw.product import Product
from adagp.papers.fast.hardware import BlockWidths, chunk_serial_cycles, grouped
from adagp.rtl.block import delayed
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.float_gates import SINGLE, add, normalise, round_and_pack
from adagp.rtl.formats import GROUPED_FORMATS, GroupedFormat, Words, single_bits
from adagp.rtl.instructions import Mode
from adagp.rtl.mapping import FACTORS, INDICES, OPERATIONS, ROLES, Mapping, check_fits, find_mapping
from adagp.rtl.processing_element import GroupedElement
from adagp.rtl.products import run_mapped
from adagp.rtl.simulation import Counts, SimulatedChip, simulate_chip

Gates = Any
MOST_CHUNKS = 2
"""The most chunks of a magnitude, each of two bits."""
SUMMED = {"forward": "depth", "dx": "columns", "dw": "rows"}
TENSORS = {"x": "activations", "w": "weights", "y": "gradients"}


class FastElement(GroupedElement):
    """FAST's fMAC. It multiplies one chunk of each number of two groups, g times 2 x 2 bits, and adds them up in a tree.

    Magnitudes of two chunks take several passes, one for each pair: the tree's sum is shifted by the chunks' places and
    accumulated, all as integers. With the last pass the accumulated sum gets the groups' exponents and is added, rounded once,
    to a sum in fp32. It keeps a chunk of each number before a fold, or two if `wide`.
    """

    def __init__(self, number: "GroupFormat", stages: int = 0) -> None:
        super().__init__(number, stages)
        self.number = number

    def elaborate(self, platform: Any) -> Module:
        """Build the gates."""
        m = Module()
        bits = self.number.value_bits
        stored = Signal(MOST_CHUNKS * bits)
        left, right, addend = Signal(bits), Signal(bits), Signal(SINGLE.bits)
        m.d.comb += [
            left.eq(Mux(self._is(Mode.DOWN), self.above, self.beside)),
            right.eq(Mux(self._is(Mode.STATIONARY), self.above, Mux(self.part.other, stored[bits:], stored[:bits]))),
            addend.eq(self._addend(stored)),
        ]
        m.d.sync += self.part_out.eq(self.part)
        product, done, ends = self._product(m, left, right), self.step & self.part.final, self.step & self.last
        if self.stages:
            product, done, ends = (delayed(m, signal) for signal in (product, done, ends))
        self._move(m, stored, add(m, addend, product), done, ends)
        return m

    def _keep(self, m: Module, stored: Gates, full: Gates) -> None:
        """Keep the word from above: of two, the second goes above the first."""
        bits, half = self.number.value_bits, Signal()
        with m.If(half):
            m.d.sync += stored[bits:].eq(self.above)
        with m.Else():
            m.d.sync += stored[:bits].eq(self.above)
        m.d.sync += [half.eq(self.wide & ~half), full.eq(half | ~self.wide)]

    def _product(self, m: Module, left: Gates, right: Gates) -> Gates:
        """Return what the passes over two groups have gathered, with this one, as fp32."""
        number = self.number
        width = number.gathered_bits
        tree = _sum_of(m, [_multiplied(m, *_chunks(number, index, left, right)) for index in range(number.group)])
        gathered, now = Signal(signed(width + 1)), Signal(signed(width + 1))
        shifted = Mux(self.part.place[1], tree << 2 * CHUNK_BITS, Mux(self.part.place[0], tree << CHUNK_BITS, tree))
        m.d.comb += now.eq(Mux(self.part.first, 0, gathered) + shifted)
        with m.If(self.step):
            m.d.sync += gathered.eq(now)
        magnitude, exponent, result = Signal(width), Signal(signed(12)), Signal(SINGLE.bits)
        m.d.comb += magnitude.eq(Mux(now < 0, -now, now))
        normalised, shift = normalise(m, magnitude, width)
        groups = left[: number.exponent_bits] + right[: number.exponent_bits]
        m.d.comb += exponent.eq(groups + self.scale.as_signed() + Const(SINGLE.bias + width - 1) - shift)
        packed = round_and_pack(m, now < 0, exponent, normalised, width, SINGLE)
        m.d.comb += result.eq(Mux(magnitude.any(), packed, 0))
        return result


def _chunks(number: "GroupFormat", index: int, *words: Gates) -> list[Gates]:
    """Return a number's chunk and sign in each of some values."""
    start = number.exponent_bits + index * (CHUNK_BITS + 1)
    return [word[start : start + CHUNK_BITS + 1] for word in words]


def _multiplied(m: Module, first: Gates, second: Gates) -> Gates:
    plain, product = Signal(2 * CHUNK_BITS), Signal(signed(2 * CHUNK_BITS + 1))
    m.d.comb += plain.eq(first[:CHUNK_BITS] * second[:CHUNK_BITS])
    m.d.comb += product.eq(Mux(first[CHUNK_BITS] ^ second[CHUNK_BITS], -plain, plain))
    return product


def _sum_of(m: Module, numbers: Sequence[Gates]) -> Gates:
    """Return the sum of signed numbers, by a tree of adders."""
    while len(numbers) > 1:
        pairs = [first + second for first, second in zip(numbers[::2], numbers[1::2], strict=False)]
        sums = [Signal(signed(len(pair))) for pair in pairs]
        m.d.comb += [total.eq(pair) for total, pair in zip(sums, pairs, strict=True)]
        numbers = sums + list(numbers[len(numbers) & ~1 :])
    return numbers[0]


@dataclass(frozen=True)
class GroupFormat(GroupedFormat):
    """FAST's block floating point: a value is one chunk, two bits of the magnitude, of each number of a group.

    Its lowest bits are the group's exponent; then come, number by number, two bits and a sign. A magnitude has one or two
    chunks, and a group takes as many values.
    """

    group: int = 16
    exponent_bits: int = 4

    @property
    def longest_sum(self) -> None:
        """Products that a sum takes for certain."""
        return None

    @property
    def gathered_bits(self) -> int:
        """Width of the magnitude of what a pair of groups can add up to."""
        return (self.group * ((1 << CHUNK_BITS * MOST_CHUNKS) - 1) ** 2).bit_length()

    def element(self, stages: int) -> FastElement:
        """Return an fMAC."""
        return FastElement(self, stages)

    def check_product(
        self,
        blueprint: Blueprint,
        dataflow: str,
        operation: str,
        sizes: tuple[int, int, int],
        mantissa_bits: str | None,
        seed: int,
        vcd: Path | None,
    ) -> dict[str, Any]:
        """Compare a product of groups in hardware with the models."""
        return check_groups(blueprint, dataflow, operation, sizes, parse_mantissas(mantissa_bits or "4"), seed, vcd)


BFP = GroupFormat("bfp", 4 + 16 * (CHUNK_BITS + 1), 32)
GROUPED_FORMATS.add("bfp", BFP)


@dataclass(frozen=True)
class Groups:
    """Lines of numbers in groups: signed `magnitudes` (lines x groups x numbers of a group) and `codes` of exponents (lines x
    groups). A magnitude of 1 is worth 2^(code + `unit`)."""

    magnitudes: Words
    codes: Words
    unit: int
    chunks: int


def to_groups(reals: NDArray[np.float64], number: GroupFormat, mantissa_bits: int) -> Groups:
    """Return lines of numbers in groups, each rounded to the nearest magnitude; the last group is filled up with zeros."""
    lines, length = reals.shape
    padded = np.pad(reals, ((0, 0), (0, -length % number.group))).reshape(lines, -1, number.group)
    largest = np.abs(padded).max(axis=2)
    window = (1 << number.exponent_bits) - 1
    exponents = np.frexp(largest)[1].astype(np.int64) - 1
    top = int(exponents[largest > 0].max(initial=0 if not largest.any() else -(1 << 20)))
    codes = np.where(largest > 0, np.clip(exponents - top + window, 0, window), 0)
    unit = top - window - mantissa_bits + 1
    scaled = np.floor(np.ldexp(np.abs(padded), -(codes + unit)[..., None]) + 0.5)
    magnitudes = np.minimum(scaled, (1 << mantissa_bits) - 1).astype(np.int64)
    return Groups(np.where(padded < 0, -magnitudes, magnitudes), codes, unit, -(-mantissa_bits // CHUNK_BITS))


def to_values(groups: Groups, number: GroupFormat) -> Words:
    """Return the values that hold groups, the lowest chunk first: lines x groups x chunks."""
    values = []
    for chunk in range(groups.chunks):
        bits = np.abs(groups.magnitudes) >> CHUNK_BITS * chunk & (1 << CHUNK_BITS) - 1
        signed = bits | (groups.magnitudes < 0) << CHUNK_BITS
        shifts = number.exponent_bits + (CHUNK_BITS + 1) * np.arange(number.group)
        values.append(groups.codes | (signed << shifts).sum(axis=2))
    return np.stack(values, axis=2)


def group_products(left: Groups, right: Groups, sums: Words | None = None) -> Words:
    """Return the sums, in fp32, of all lines of `left` with all lines of `right`, from zero or `sums` on: group by group,
    rounded after each."""
    total = np.zeros((len(left.codes), len(right.codes)), np.float32)
    if sums is not None:
        total = sums.astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        for group in range(left.codes.shape[1]):
            whole = left.magnitudes[:, group] @ right.magnitudes[:, group].T
            exponents = left.codes[:, None, group] + right.codes[None, :, group] + left.unit + right.unit
            total = total + np.ldexp(whole.astype(np.float64), exponents).astype(np.float32)
    return single_bits(total)


def parse_mantissas(text: str) -> BlockWidths:
    """Return the bits of magnitudes that `text` gives: of weights, activations and gradients, or one for all."""
    allowed = [str(CHUNK_BITS * chunks) for chunks in range(1, MOST_CHUNKS + 1)]
    parts = text.split(",") if "," in text else [text] * len(TENSORS)
    if len(parts) != len(TENSORS) or any(part not in allowed for part in parts):
        raise OptionError(
            f"cannot read the mantissa bits '{text}'; write 2 or 4, or three of them, of weights, activations and gradients, "
            "as 4,2,4."
        )
    return BlockWidths(*map(int, parts))


def run_groups(
    chip: SimulatedChip, mapping: Mapping, matrices: dict[str, Groups], *, adds: bool = False
) -> tuple[Words, Counts]:
    """Run a product of groups on a chip. `matrices` are the factors, by name, lines of groups along the summed index; with
    `adds` they are added to the sums that the last product left."""
    number = _group_format(chip.blueprint)
    contents, fields = {}, {"scale": sum(matrix.unit for matrix in matrices.values()), "adds": int(adds)}
    for role in ROLES:
        name = getattr(mapping, role)
        if name != mapping.result:
            values = to_values(matrices[name], number)
            lines_are_summed = mapping.layout(role)[0] not in INDICES[mapping.result]
            turned = values.transpose(1, 0, 2) if lines_are_summed else values
            contents[role] = turned.reshape(len(turned), -1)
            fields[f"wide_{role}"] = matrices[name].chunks - 1
    return run_mapped(chip, mapping, contents, fields)


def _group_format(blueprint: Blueprint) -> GroupFormat:
    number = blueprint.core.number
    assert isinstance(number, GroupFormat)
    return number


def group_mapping(number: GroupFormat, dataflow: str, operation: str, sizes: tuple[int, int, int]) -> Mapping:
    """Return how a product of `sizes` (rows, depth, columns) in numbers runs as one of groups."""
    find_mapping(dataflow, operation, *sizes)  # whose names and sizes are checked
    lengths = dict(zip(("rows", "depth", "columns"), sizes, strict=True))
    lengths[SUMMED[operation]] = -(-lengths[SUMMED[operation]] // number.group)
    return find_mapping(dataflow, operation, **lengths)


def draw_groups(
    number: GroupFormat, operation: str, sizes: tuple[int, int, int], widths: BlockWidths, seed: int
) -> dict[str, Groups]:
    """Return the factors of an operation, drawn from a normal distribution, in groups along the summed index."""
    rng = np.random.default_rng(seed)
    lengths = dict(zip(("rows", "depth", "columns"), sizes, strict=True))
    drawn = {}
    for name in FACTORS[operation][:2]:
        reals = rng.normal(size=[lengths[index] for index in INDICES[name]])
        along = reals if INDICES[name][1] == SUMMED[operation] else reals.T
        drawn[name] = to_groups(along, number, getattr(widths, TENSORS[name]))
    return drawn


def model_cycles(
    blueprint: Blueprint, dataflow: str, operation: str, sizes: tuple[int, int, int], widths: BlockWidths
) -> int:
    """Return the cycles of the product of groups by adagp.hw, plus a cycle for each pipeline stage."""
    product = grouped(Product(*sizes).gradient(OPERATIONS[operation]), widths)
    return sum(chunk_serial_cycles(product, blueprint.core.array, dataflow, widths)) + blueprint.core.stages


def check_groups(
    blueprint: Blueprint,
    dataflow: str,
    operation: str,
    sizes: tuple[int, int, int],
    widths: BlockWidths,
    seed: int = 0,
    vcd: Path | None = None,
) -> dict[str, Any]:
    """Return cycles and values of a product of groups in hardware, and whether they are the models'."""
    number = _group_format(blueprint)
    mapping = group_mapping(number, dataflow, operation, sizes)
    chunks = {name: getattr(widths, TENSORS[name]) // CHUNK_BITS for name in FACTORS[operation][:2]}
    check_fits(blueprint.core, mapping, {role: chunks.get(getattr(mapping, role), 1) for role in ROLES})
    matrices = draw_groups(number, operation, sizes, widths, seed)
    with simulate_chip(blueprint, vcd) as chip:
        result, counts = run_groups(chip, mapping, matrices)
        simulator = chip.simulator
    left, right = (matrices[name] for name in FACTORS[operation][:2])
    wrong = int(np.count_nonzero(result != group_products(left, right)))
    cycles = model_cycles(blueprint, dataflow, operation, sizes, widths)
    return {
        "cycles": counts.cycles,
        "model_cycles": cycles,
        "elapsed_cycles": counts.elapsed,
        "buffer_reads": counts.reads,
        "buffer_writes": counts.writes,
        "values": result.size,
        "wrong_values": wrong,
        "equal": wrong == 0 and counts.cycles == counts.span == cycles,
        "array": str(blueprint.core.array),
        "dataflow": dataflow,
        "operation": operation,
        "format": number.name,
        "passes": widths.passes(OPERATIONS[operation]),
        "simulator": simulator,
    }
