"""Blocks: Amaranth components, of which a chip has many alike; and the simplest, a bank of memory.

In Amaranth's own simulator each block is a part of its parent. For Verilog, every **kind** of block becomes one module that
is instantiated as often as needed; so it is written, compiled and synthesised once.
"""

from dataclasses import dataclass, field
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["Block", "In", "Netlist", "Out", "add_submodule", "delayed", "port_bits", "to_rtlil"]


class Block(wiring.Component):
    """A component whose ports are plain signals. Blocks of one `kind` must be equal: they may differ only in their inputs."""

    kind: str = "block"


def port_bits(block: Block) -> dict[str, tuple[str, int]]:
    """Return the ports of a block that is only used for this call, by name: direction and width."""
    block._MustUse__used = True
    return {
        name: ("in" if member.flow is In else "out", len(Value.cast(getattr(block, name))))
        for name, member in block.signature.members.items()
    }


@dataclass
class Netlist:
    """Given to Amaranth as the platform: blocks become instances, and are collected here by their kind."""

    kinds: dict[str, Block] = field(default_factory=dict)


def add_submodule(module: Module, platform: Any, name: str, block: Block) -> None:
    """Make `block` a part of `module`."""
    if not isinstance(platform, Netlist):
        module.submodules[name] = block
        return
    platform.kinds.setdefault(block.kind, block)
    block._MustUse__used = True  # by the first of its kind, which alone is elaborated; without it Amaranth warns
    ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
    for member, description in block.signature.members.items():
        ports[("i_" if description.flow is In else "o_") + member] = getattr(block, member)
    module.submodules[name] = Instance(block.kind, **ports)


def delayed(module: Module, signal: Any, cycles: int = 1) -> Any:
    """Return a signal delayed by `cycles` cycles."""
    for _ in range(cycles):
        late = Signal.like(signal) if isinstance(signal, Signal) else Signal(signal.shape())
        module.d.sync += late.eq(signal)
        signal = late
    return signal


def to_rtlil(top: Block) -> dict[str, str]:
    """Return `top` and every kind of block inside it in Yosys's language, by kind; `top` is the last."""
    texts: dict[str, str] = {}

    def visit(block: Block) -> None:
        netlist = Netlist()
        text = rtlil.convert(block, name=block.kind, platform=netlist, emit_src=False)
        for kind, part in netlist.kinds.items():
            if kind not in texts:
                visit(part)
        texts[block.kind] = text

    visit(top)
    return texts


class Bank(Block):
    """`words` of `bits` each. `data` has the word at `address` from the cycle after `read` on, until the next `read`."""

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
