"""The processing element: one multiply-add, three registers, three modes."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from adagp.rtl import gates
from adagp.rtl.block import Block, delayed
from adagp.rtl.formats import ArrayFormat, GroupedFormat, NumberFormat
from adagp.rtl.instructions import PASS, SCALE_BITS, Mode

Gates = Any


class ArrayElement(Block):
    """One PE. `beside` comes from the left and goes right, `above` comes from above and goes down, a cycle later each.

    `step` means that this cycle's words are multiplied, `last` that they are a fold's last; both go right. Before a fold that
    loads, a word from above with a `tag` is one to keep: an empty PE keeps it, a full one passes it on. After a fold of mode
    STATIONARY, a tagged word is a complete sum on its way down: each PE passes on those from above and then appends its own,
    which is `pending` until then. Words to keep arrive only after that. With a pipeline stage, products are added a cycle
    later, to sums that come a cycle later.
    """

    kind = "element"

    def __init__(self, number: ArrayFormat, stages: int = 0, **more: Any) -> None:
        self.stages, self.sum_bits = stages, number.sum_bits
        width = number.word_bits
        super().__init__(
            {
                "mode": In(2),
                "clear": In(1),
                "step": In(1),
                "last": In(1),
                "tag": In(1),
                "beside": In(width),
                "above": In(width),
                "step_out": Out(1),
                "last_out": Out(1),
                "tag_out": Out(1),
                "beside_out": Out(width),
                "above_out": Out(width),
                **more,
            }
        )

    def _is(self, mode: Mode) -> Gates:
        return self.mode == int(mode)

    def _addend(self, stored: Gates) -> Gates:
        return Mux(self._is(Mode.ACROSS), self.above, Mux(self._is(Mode.DOWN), self.beside, stored))

    def _keep(self, m: Module, stored: Gates, full: Gates) -> None:
        m.d.sync += [stored.eq(self.above), full.eq(1)]

    def _move(self, m: Module, stored: Gates, total: Gates, adds: Gates, ends: Gates) -> None:
        """Pass words and sums on, and keep what is to be kept. `total` is a new sum in cycles in which the PE `adds`; with
        `ends` it is the last of a fold."""
        full, pending, keeps, appends = (Signal(name=name) for name in ("full", "pending", "keeps", "appends"))
        across, down, stationary = map(self._is, Mode)
        m.d.comb += [keeps.eq(self.tag & ~full & ~pending), appends.eq(pending & ~self.tag & stationary)]
        m.d.sync += [
            self.step_out.eq(self.step),
            self.last_out.eq(self.last),
            self.tag_out.eq((self.tag & ~keeps) | appends),
            self.beside_out.eq(Mux(adds & down, total, self.beside)),
            self.above_out.eq(Mux(appends, stored[: self.sum_bits], Mux(adds & across, total, self.above))),
        ]
        with m.If(self.clear):
            m.d.sync += [stored.eq(0), full.eq(0), pending.eq(0)]
        with m.Else():
            with m.If(adds & stationary):
                m.d.sync += stored.eq(total)
            with m.Elif(keeps):
                self._keep(m, stored, full)
            with m.Elif(appends):
                m.d.sync += [stored.eq(0), pending.eq(0)]
            with m.If(ends):
                m.d.sync += [full.eq(0), pending.eq(stationary)]


class GroupedElement(ArrayElement):
    """A PE of groups, which multiplies two groups in passes.

    `part` is the pass, and goes right with `step`. `wide` groups are loaded as two words. `scale` is added to the exponents of
    all products.
    """

    def __init__(self, number: GroupedFormat, stages: int = 0) -> None:
        super().__init__(number, stages, wide=In(1), scale=In(SCALE_BITS), part=In(PASS), part_out=Out(PASS))


class Element(ArrayElement):
    """A PE of single numbers."""

    def __init__(self, number: NumberFormat, stages: int = 0) -> None:
        super().__init__(number, stages)
        self.number = number

    def elaborate(self, platform: Any) -> Module:
        """Build the gates."""
        m = Module()
        number, bits = self.number, self.number.value_bits
        stored = Signal(number.sum_bits)
        left = Mux(self._is(Mode.DOWN), self.above, self.beside)[:bits]
        right = Mux(self._is(Mode.STATIONARY), self.above, stored)[:bits]
        product, adds, ends = gates.multiply(m, number, left, right), self.step, self.step & self.last
        if self.stages:
            product, adds, ends = (delayed(m, signal) for signal in (product, adds, ends))
        total = gates.add_product(m, number, self._addend(stored), product)
        self._move(m, stored, total, adds, ends)
        return m
