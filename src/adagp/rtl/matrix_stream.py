"""Whole matrices by AXI-Stream: words of a stream go into the banks of a core, and words of the banks leave as a stream.

A matrix lies in the lanes as instructions expect it: line i in lane i modulo the lanes, its words one after the other.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.instructions import SIZE_BITS


def stream_bits(blueprint: Blueprint) -> int:
    """Return the width of a stream's words: a power of two of bytes, at least four, that holds a word of any bank."""
    return max(32, 1 << (blueprint.core.number.word_bits - 1).bit_length())


def stream_ports(blueprint: Blueprint) -> dict[str, Any]:
    """Return both streams as the chip sees them: `s_axis` comes in, `m_axis` goes out."""
    names = {"tdata": stream_bits(blueprint), "tvalid": 1, "tlast": 1}
    ports = {f"s_axis_{name}": In(bits) for name, bits in names.items()} | {"s_axis_tready": Out(1)}
    return ports | {f"m_axis_{name}": Out(bits) for name, bits in names.items()} | {"m_axis_tready": In(1)}


class MatrixStream(Block):
    """Moves one matrix at a time, a word a cycle at most: `load` begins to take it from a stream, `store` to send it.

    `misplaced` is high from the moment a stream's `tlast` came too early, or was missing at the end, until the next `load`.
    """

    kind = "matrix_stream"

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        address = max(core.address_bits for core in blueprint.cores)
        lane = max(core.lane_bits for core in blueprint.cores)
        word = blueprint.core.number.word_bits
        super().__init__(
            {
                "load": In(1),
                "store": In(1),
                "core": In(1),
                "memory": In(2),
                "base": In(address),
                "lines": In(SIZE_BITS),
                "words": In(SIZE_BITS),
                "loading": Out(1),
                "storing": Out(1),
                "ends": Out(1),
                "misplaced": Out(1),
                "host_read": Out(1),
                "host_write": Out(1),
                "host_lane": Out(lane),
                "host_address": Out(address),
                "host_in": Out(word),
                "host_out": In(word),
                **stream_ports(blueprint),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the walk over lanes and addresses, and both streams."""
        m = Module()
        loaded, requested = Signal(), Signal()
        final = self._walk(m, loaded | requested)
        m.d.comb += [
            self.s_axis_tready.eq(self.loading),
            loaded.eq(self.loading & self.s_axis_tvalid),
            self.host_write.eq(loaded),
            self.host_in.eq(self.s_axis_tdata),
        ]
        with m.If(self.load):
            m.d.sync += [self.loading.eq(1), self.misplaced.eq(0)]
        with m.Elif(loaded):
            m.d.sync += self.misplaced.eq(self.misplaced | (self.s_axis_tlast != final))
            with m.If(final):
                m.d.sync += self.loading.eq(0)

        # A bank's word stays until the next read: it is the stream's word, and the next is read when that is taken.
        asks, sent = Signal(), Signal()
        m.d.comb += [
            sent.eq(self.m_axis_tvalid & self.m_axis_tready),
            requested.eq(asks & (~self.m_axis_tvalid | sent)),
            self.host_read.eq(requested),
            self.m_axis_tdata.eq(self.host_out),
            self.storing.eq(asks | self.m_axis_tvalid),
            self.ends.eq((loaded & final) | (sent & self.m_axis_tlast)),
        ]
        with m.If(self.store):
            m.d.sync += asks.eq(1)
        with m.Elif(requested & final):
            m.d.sync += asks.eq(0)
        with m.If(requested):
            m.d.sync += [self.m_axis_tvalid.eq(1), self.m_axis_tlast.eq(final)]
        with m.Elif(sent):
            m.d.sync += [self.m_axis_tvalid.eq(0), self.m_axis_tlast.eq(0)]
        return m

    def _walk(self, m: Module, steps: Any) -> Any:
        """Go to the next word with `steps`, from the beginning with `load` or `store`; return whether it is the last one."""
        line, word = Signal(SIZE_BITS), Signal(SIZE_BITS)
        start, last_word, final = Signal(self.base.shape()), Signal(), Signal()
        lane, lanes = Signal(self.host_lane.shape()), Signal(self.host_lane.shape())
        counts = [Mux(self.memory[1], core.array.columns, core.array.rows) for core in self.blueprint.cores]
        m.d.comb += [
            lanes.eq(counts[0] if len(counts) == 1 else Mux(self.core, counts[1], counts[0])),
            last_word.eq(word == self.words - 1),
            final.eq(last_word & (line == self.lines - 1)),
            self.host_lane.eq(lane),
            self.host_address.eq(start + word),
        ]
        with m.If(self.load | self.store):
            m.d.sync += [Cat(line, word, lane).eq(0), start.eq(self.base)]
        with m.Elif(steps):
            m.d.sync += word.eq(Mux(last_word, 0, word + 1))
            with m.If(last_word):
                m.d.sync += [line.eq(line + 1), lane.eq(lane + 1)]
                with m.If(lane == lanes - 1):
                    m.d.sync += [lane.eq(0), start.eq(start + self.words)]
        return final
