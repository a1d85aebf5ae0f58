"""A bank: a memory with one port to read and one to write, a block of its own, which a chip maker replaces by an SRAM."""

from typing import Any

from amaranth.hdl import Module, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block


class Bank(Block):
    """`words` of `bits` each. What is asked for with `read` is in `data` from the next cycle on, until more is asked for."""

    def __init__(self, words: int, bits: int) -> None:
        self.words, self.bits = words, bits
        self.kind = f"bank_{words}x{bits}"
        super().__init__(
            {
                "read": In(1),
                "address": In(range(words)),
                "data": Out(bits),
                "write": In(1),
                "write_address": In(range(words)),
                "write_data": In(bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the memory."""
        m = Module()
        m.submodules.memory = memory = Memory(shape=unsigned(self.bits), depth=self.words, init=[])
        reader, writer = memory.read_port(), memory.write_port()
        m.d.comb += [
            reader.en.eq(self.read),
            reader.addr.eq(self.address),
            self.data.eq(reader.data),
            writer.en.eq(self.write),
            writer.addr.eq(self.write_address),
            writer.data.eq(self.write_data),
        ]
        return m
