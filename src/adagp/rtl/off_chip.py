"""Off-chip memory of design low: the port that leads to it, with ready and valid, and a memory for simulations.

A channel's word is passed in a cycle in which both `valid` (of who sends) and `ready` (of who takes) are high.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block
from adagp.rtl.blueprint import CoreSizes

LATENCY_BITS = 8
"""Bits of the largest additional latency, in cycles, that a simulated memory draws."""


def off_chip_ports(sizes: CoreSizes) -> dict[str, Any]:
    """Return the three channels, as the chip sees them: requests to read, the words that were read, and words to write."""
    address, value = sizes.address_bits, sizes.number.value_bits
    return {
        "off_chip_read": Out(1),
        "off_chip_read_ready": In(1),
        "off_chip_read_address": Out(address),
        "off_chip_in_valid": In(1),
        "off_chip_in_ready": Out(1),
        "off_chip_in": In(value),
        "off_chip_write": Out(1),
        "off_chip_write_ready": In(1),
        "off_chip_write_address": Out(address),
        "off_chip_out": Out(value),
    }


class OffChipPort(Block):
    """Passes the element unit's requests on, and holds the unit until memory has answered.

    One word at a time is on its way: the next request goes out with the step that uses the last word. So there is always room
    for an answer, and a memory that does one thing after the other cannot be blocked. With a memory that is always ready and
    answers in the next cycle the unit never waits.
    """

    kind = "off_chip_port"

    def __init__(self, sizes: CoreSizes) -> None:
        self.sizes = sizes
        address, value = sizes.address_bits, sizes.number.value_bits
        super().__init__(
            {
                "read": In(1),
                "read_address": In(address),
                "write": In(1),
                "write_address": In(address),
                "write_value": In(value),
                "value": Out(value),
                "hold": Out(1),
                **off_chip_ports(sizes),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the handshakes."""
        m = Module()
        awaited, kept, written = Signal(), Signal(), Signal()
        word = Signal(self.sizes.number.value_bits)
        arrives, there, writes_done, steps = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            self.off_chip_in_ready.eq(awaited & ~kept),
            arrives.eq(self.off_chip_in_valid & self.off_chip_in_ready),
            there.eq(~awaited | kept | arrives),
            self.value.eq(Mux(kept, word, self.off_chip_in)),
            # The word to write may depend on the word that has not arrived yet.
            self.off_chip_write.eq(self.write & ~written & there),
            self.off_chip_write_address.eq(self.write_address),
            self.off_chip_out.eq(self.write_value),
            writes_done.eq(~self.write | written | (self.off_chip_write & self.off_chip_write_ready)),
            self.off_chip_read.eq(self.read & there & writes_done),
            self.off_chip_read_address.eq(self.read_address),
            steps.eq(there & writes_done & (~self.read | self.off_chip_read_ready)),
            self.hold.eq(~steps),
        ]
        with m.If(steps):
            m.d.sync += [awaited.eq(self.read), kept.eq(0), written.eq(0)]
        with m.Else():
            m.d.sync += [kept.eq(kept | arrives), written.eq(self.write & writes_done)]
            with m.If(arrives):
                m.d.sync += word.eq(self.off_chip_in)
        return m


class SimulatedMemory(Block):
    """A memory for simulations. It takes requests, and answers them, up to `latency` cycles later than it could, at random.

    The host reads and writes it while no program runs.
    """

    kind = "simulated_memory"

    def __init__(self, sizes: CoreSizes) -> None:
        self.sizes = sizes
        address, value = sizes.address_bits, sizes.number.value_bits
        super().__init__(
            {
                "latency": In(LATENCY_BITS),
                "host_read": In(1),
                "host_write": In(1),
                "host_address": In(address),
                "host_in": In(value),
                "host_out": Out(value),
                **{name: member.flip() for name, member in off_chip_ports(sizes).items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build memory and waiting."""
        m = Module()
        m.submodules.words = words = Memory(
            shape=unsigned(self.sizes.number.value_bits), depth=self.sizes.off_chip_words, init=[]
        )
        reader, writer = words.read_port(), words.write_port()
        draw = Signal(31, init=1)
        m.d.sync += draw.eq(Cat(draw[1:], draw[0] ^ draw[3]))  # a shift register that visits all states
        read_wait, answer_wait, write_wait = (
            Signal(LATENCY_BITS, name=f"{name}_wait") for name in ("read", "answer", "write")
        )
        answers, reads, writes = Signal(), Signal(), Signal()
        m.d.comb += [
            self.off_chip_in_valid.eq(answers & (answer_wait == 0)),
            self.off_chip_in.eq(reader.data),
            self.off_chip_read_ready.eq(
                (read_wait == 0) & (~answers | (self.off_chip_in_valid & self.off_chip_in_ready))
            ),
            self.off_chip_write_ready.eq(write_wait == 0),
            reads.eq(self.off_chip_read & self.off_chip_read_ready),
            writes.eq(self.off_chip_write & self.off_chip_write_ready),
            reader.en.eq(reads | self.host_read),
            reader.addr.eq(Mux(reads, self.off_chip_read_address, self.host_address)),
            self.host_out.eq(reader.data),
            writer.en.eq(writes | self.host_write),
            writer.addr.eq(Mux(writes, self.off_chip_write_address, self.host_address)),
            writer.data.eq(Mux(writes, self.off_chip_out, self.host_in)),
        ]
        with m.If(reads):
            m.d.sync += answers.eq(1)
        with m.Elif(self.off_chip_in_valid & self.off_chip_in_ready):
            m.d.sync += answers.eq(0)
        for wait, begins, bits in ((read_wait, reads, 0), (answer_wait, reads, 8), (write_wait, writes, 16)):
            with m.If(begins):
                m.d.sync += wait.eq(draw[bits : bits + LATENCY_BITS] % (self.latency + 1))
            with m.Elif(wait > 0):
                m.d.sync += wait.eq(wait - 1)
        return m
