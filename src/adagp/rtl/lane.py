"""A lane: the banks of one row or one column of the array, and the command that comes from the lane before."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block
from adagp.rtl.sizes import CoreSizes


def read_command(sizes: CoreSizes) -> data.StructLayout:
    """Return the layout of what a lane is told to read: lanes below `count` read a value or a sum, if it is `valid`."""
    return data.StructLayout(
        {
            "valid": unsigned(1),
            "sums": unsigned(1),
            "address": unsigned(sizes.address_bits),
            "count": unsigned(sizes.lane_bits),
            "step": unsigned(1),
            "last": unsigned(1),
            "tag": unsigned(1),
        }
    )


def write_command(sizes: CoreSizes) -> data.StructLayout:
    """Return the layout of what a lane is told to write: lanes below `count` write the sum that comes out of the array."""
    return data.StructLayout(
        {"valid": unsigned(1), "address": unsigned(sizes.address_bits), "count": unsigned(sizes.lane_bits)}
    )


class Lane(Block):
    """A bank of values and a bank of sums, with one port to read and one to write each.

    Commands go to the next lane a cycle later: the skew of a systolic array lies in them, not in the data. A lane that does not
    read gives zeros. While the array is idle the banks are open to the core (`value_*`, `sum_*`). Addresses from the end of the
    values on are those of the predictor's own bank, where there is one.
    """

    def __init__(self, sizes: CoreSizes, *, predictor_words: int = 0) -> None:
        self.sizes, self.predictor_words = sizes, predictor_words
        self.kind = sizes.prefix + ("wide_lane" if predictor_words else "lane")
        value, total, address = sizes.number.value_bits, sizes.number.sum_bits, sizes.address_bits
        read, write = read_command(sizes), write_command(sizes)
        super().__init__(
            {
                "index": In(sizes.lane_bits),
                "read": In(read),
                "read_out": Out(read),
                "write": In(write),
                "write_out": Out(write),
                "result": In(total),
                "data": Out(total),
                "step": Out(1),
                "last": Out(1),
                "tag": Out(1),
                "value_read": In(1),
                "value_address": In(address),
                "value": Out(value),
                "value_write": In(1),
                "value_write_address": In(address),
                "value_in": In(value),
                "sum_read": In(1),
                "sum_address": In(address),
                "total": Out(total),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build banks and gates."""
        m = Module()
        sizes, number = self.sizes, self.sizes.number
        read, write = self.read, self.write
        m.d.sync += [self.read_out.eq(read), self.write_out.eq(write)]
        active = Signal()
        m.d.comb += active.eq(read.valid & (self.index < read.count))

        m.submodules.sums = sums = Memory(shape=unsigned(number.sum_bits), depth=sizes.sum_words, init=[])
        reader, writer = sums.read_port(), sums.write_port()
        m.d.comb += [
            reader.addr.eq(Mux(read.valid, read.address, self.sum_address)),
            reader.en.eq((active & read.sums) | self.sum_read),
            self.total.eq(reader.data),
            writer.addr.eq(write.address),
            writer.data.eq(self.result),
            writer.en.eq(write.valid & (self.index < write.count)),
        ]

        address = Signal(sizes.address_bits)
        enable = Signal()
        m.d.comb += [
            address.eq(Mux(read.valid, read.address, self.value_address)),
            enable.eq((active & ~read.sums) | self.value_read),
        ]
        m.submodules.values = values = Memory(shape=unsigned(number.value_bits), depth=sizes.value_words, init=[])
        self._value_bank(m, values, address, enable, 0, sizes.value_words)
        value = self._data
        if self.predictor_words:
            m.submodules.own = own = Memory(shape=unsigned(number.value_bits), depth=self.predictor_words, init=[])
            self._value_bank(m, own, address, enable, sizes.value_words, self.predictor_words)
            from_own = Signal()
            with m.If(enable):
                m.d.sync += from_own.eq(address >= sizes.value_words)
            value = Mux(from_own, self._data, value)
        m.d.comb += self.value.eq(value)

        gives_value, gives_sum = Signal(), Signal()
        m.d.sync += [
            gives_value.eq(active & ~read.sums),
            gives_sum.eq(active & read.sums),
            self.step.eq(read.step),
            self.last.eq(read.last),
            self.tag.eq(read.tag),
        ]
        m.d.comb += self.data.eq(Mux(gives_sum, self.total, Mux(gives_value, self.value, 0)))
        return m

    def _value_bank(self, m: Module, bank: Any, address: Any, enable: Any, start: int, words: int) -> None:
        """Connect a bank that holds the addresses from `start` on; its data are in `self._data`."""
        reader, writer = bank.read_port(), bank.write_port()
        inside = address >= start if start else address < words
        inside_write = self.value_write_address >= start if start else self.value_write_address < words
        m.d.comb += [
            reader.addr.eq(address - start),
            reader.en.eq(enable & inside),
            writer.addr.eq(self.value_write_address - start),
            writer.data.eq(self.value_in),
            writer.en.eq(self.value_write & inside_write),
        ]
        self._data = reader.data
