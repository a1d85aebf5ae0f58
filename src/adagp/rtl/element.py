"""The processing element: one multiply-add, three registers, three modes."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from adagp.rtl import gates
from adagp.rtl.block import Block
from adagp.rtl.formats import NumberFormat
from adagp.rtl.instructions import Mode


class Element(Block):
    """One PE. `beside` comes from the left and goes right, `above` comes from above and goes down, a cycle later each.

    `step` says that this cycle's words are multiplied, `last` that they are a fold's last; both go right. A word from above
    with a `tag` is one to keep, before a fold of the modes that load: an empty PE keeps it, a full one passes it on. After a
    fold of the mode STATIONARY it is a complete sum on its way down: each PE appends its own to those from above.
    """

    kind = "element"

    def __init__(self, number: NumberFormat) -> None:
        self.number = number
        width = number.sum_bits
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
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the gates."""
        m = Module()
        number, bits = self.number, self.number.value_bits
        kept, full, pending = Signal(number.sum_bits), Signal(), Signal()
        across, down, stationary = (self.mode == int(mode) for mode in Mode)
        left = Mux(down, self.above, self.beside)[:bits]
        right = Mux(stationary, self.above, kept)[:bits]
        addend = Mux(across, self.above, Mux(down, self.beside, kept))
        total = gates.multiply_add(m, number, left, right, addend)
        keeps = Signal()
        appends = Signal()
        m.d.comb += [
            keeps.eq(self.tag & ~full & ~stationary),
            appends.eq(pending & ~self.tag & stationary),
        ]
        m.d.sync += [
            self.step_out.eq(self.step),
            self.last_out.eq(self.last),
            self.tag_out.eq((self.tag & ~keeps) | appends),
            self.beside_out.eq(Mux(self.step & down, total, self.beside)),
            self.above_out.eq(Mux(appends, kept, Mux(self.step & across, total, self.above))),
        ]
        with m.If(self.clear):
            m.d.sync += [kept.eq(0), full.eq(0), pending.eq(0)]
        with m.Else():
            with m.If(self.step & stationary):
                m.d.sync += kept.eq(total)
            with m.Elif(keeps):
                m.d.sync += [kept.eq(self.above), full.eq(1)]
            with m.Elif(appends):
                m.d.sync += [kept.eq(0), pending.eq(0)]
            with m.If(self.step & self.last):
                m.d.sync += [full.eq(0), pending.eq(stationary)]
        return m
