"""The processing element of groups in block floating point: FAST's fMAC.

It multiplies one chunk of each number of two groups, g times 2 x 2 bits, and adds them up in a tree. Magnitudes of two chunks
take several passes, one for each pair: the tree's sum is shifted by the chunks' places and gathered, all as integers. With the
last pass the gathered sum gets the groups' exponents and is added, rounded once, to a sum in fp32.
"""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from adagp.core.block_format import CHUNK_BITS
from adagp.rtl.block import delayed
from adagp.rtl.element import ArrayElement
from adagp.rtl.float_gates import SINGLE, add, normalise, round_and_pack
from adagp.rtl.formats import MOST_CHUNKS, GroupFormat
from adagp.rtl.instructions import SCALE_BITS, Mode

Gates = Any
PART = data.StructLayout({"first": unsigned(1), "final": unsigned(1), "other": unsigned(1), "place": unsigned(2)})
"""A pass over two groups: whether it is their first and their last, which chunk of what is kept it takes, and the places of
both chunks together."""


class GroupElement(ArrayElement):
    """One PE of groups.

    `part` is the pass, and goes right with `step`. It keeps a chunk of each number before a fold, or two if `wide`. `scale` is
    added to the exponents of all products.
    """

    def __init__(self, number: GroupFormat, stages: int = 0) -> None:
        super().__init__(number, stages, wide=In(1), scale=In(SCALE_BITS), part=In(PART), part_out=Out(PART))
        self.number = number

    def elaborate(self, platform: Any) -> Module:
        """Build the gates."""
        m = Module()
        bits = self.number.value_bits
        kept = Signal(MOST_CHUNKS * bits)
        left, right, addend = Signal(bits), Signal(bits), Signal(SINGLE.bits)
        m.d.comb += [
            left.eq(Mux(self._is(Mode.DOWN), self.above, self.beside)),
            right.eq(Mux(self._is(Mode.STATIONARY), self.above, Mux(self.part.other, kept[bits:], kept[:bits]))),
            addend.eq(self._addend(kept)),
        ]
        m.d.sync += self.part_out.eq(self.part)
        product, done, ends = self._product(m, left, right), self.step & self.part.final, self.step & self.last
        if self.stages:
            product, done, ends = (delayed(m, one) for one in (product, done, ends))
        self._move(m, kept, add(m, addend, product), done, ends)
        return m

    def _keep(self, m: Module, kept: Gates, full: Gates) -> None:
        """Keep the word from above: of two, the second goes above the first."""
        bits, half = self.number.value_bits, Signal()
        with m.If(half):
            m.d.sync += kept[bits:].eq(self.above)
        with m.Else():
            m.d.sync += kept[:bits].eq(self.above)
        m.d.sync += [half.eq(self.wide & ~half), full.eq(half | ~self.wide)]

    def _product(self, m: Module, left: Gates, right: Gates) -> Gates:
        """Return what the passes over two groups have gathered, with this one, as fp32."""
        number = self.number
        width = number.gathered_bits
        tree = _sum_of(m, [_multiplied(m, *_chunks(number, place, left, right)) for place in range(number.group)])
        gathered, now = Signal(signed(width + 1)), Signal(signed(width + 1))
        shifted = Mux(self.part.place[1], tree << 2 * CHUNK_BITS, Mux(self.part.place[0], tree << CHUNK_BITS, tree))
        m.d.comb += now.eq(Mux(self.part.first, 0, gathered) + shifted)
        with m.If(self.step):
            m.d.sync += gathered.eq(now)
        magnitude, exponent, result = Signal(width), Signal(signed(12)), Signal(SINGLE.bits)
        m.d.comb += magnitude.eq(Mux(now < 0, -now, now))
        normalised, places = normalise(m, magnitude, width)
        groups = left[: number.exponent_bits] + right[: number.exponent_bits]
        m.d.comb += exponent.eq(groups + self.scale.as_signed() + Const(SINGLE.bias + width - 1) - places)
        packed = round_and_pack(m, now < 0, exponent, normalised, width, SINGLE)
        m.d.comb += result.eq(Mux(magnitude.any(), packed, 0))
        return result


def _chunks(number: GroupFormat, place: int, *words: Gates) -> list[Gates]:
    """Return a number's chunk and sign in each of some values."""
    start = number.exponent_bits + place * (CHUNK_BITS + 1)
    return [word[start : start + CHUNK_BITS + 1] for word in words]


def _multiplied(m: Module, first: Gates, second: Gates) -> Gates:
    """Return the product of two chunks with signs."""
    plain, product = Signal(2 * CHUNK_BITS), Signal(signed(2 * CHUNK_BITS + 1))
    m.d.comb += plain.eq(first[:CHUNK_BITS] * second[:CHUNK_BITS])
    m.d.comb += product.eq(Mux(first[CHUNK_BITS] ^ second[CHUNK_BITS], -plain, plain))
    return product


def _sum_of(m: Module, numbers: Sequence[Gates]) -> Gates:
    """Return the sum of signed numbers, by a tree of adders."""
    while len(numbers) > 1:
        pairs = [one + other for one, other in zip(numbers[::2], numbers[1::2], strict=False)]
        sums = [Signal(signed(len(one))) for one in pairs]
        m.d.comb += [one.eq(pair) for one, pair in zip(sums, pairs, strict=True)]
        numbers = sums + list(numbers[len(numbers) & ~1 :])
    return numbers[0]
