"""The four designs as chips: their cores, and the connections between these and to the outside.

baseline     one core
low          one core, and a port to off-chip memory: the predictor's weights come and go through it
efficient    one core whose columns have a further bank each, for the predictor's weights
max          a core for the layers and a smaller one for the predictor, which meet to exchange means and gradients
"""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block, add_submodule, delayed, to_rtlil
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.core import COUNTERS, SLICE, Core, dma_ports
from adagp.rtl.off_chip import LATENCY_BITS, OffChipPort, SimulatedMemory, off_chip_ports


def chip_ports(blueprint: Blueprint, *, simulated: bool = False) -> dict[str, Any]:
    """Return the ports of a chip."""
    sizes = blueprint.core
    address = max(core.address_bits for core in blueprint.cores)
    lane = max(core.lane_bits for core in blueprint.cores)
    number = sizes.number
    seen = {name: Out(48) for name in (*COUNTERS, "predictor_cycles")} | {"array_step": Out(1), "array_leaves": Out(1)}
    return {
        "start": In(1),
        "halted": Out(1),
        "host_core": In(1),
        "host_read": In(1),
        "host_write": In(1),
        "host_memory": In(2),
        "host_lane": In(lane),
        "host_address": In(address),
        "host_in": In(number.word_bits),
        "host_out": Out(number.word_bits),
        "program_write": In(1),
        "program_slice": In(6),
        "program_address": In(max(core.program_words - 1 for core in blueprint.cores).bit_length()),
        "program_in": In(SLICE),
        **(seen | {"latency": In(LATENCY_BITS)} if simulated else {}),
        **(off_chip_ports(sizes) if sizes.off_chip_words and not simulated else {}),
        **(dma_ports(sizes) if sizes.dma_words else {}),
    }


class Chip(Block):
    """A whole chip. `start` starts the programs of all cores, `halted` is high when all have stopped.

    While the chip is halted, the host reads and writes the memories of core `host_core`: a request in one cycle, the word in
    the next. A `simulated` chip has counters and contains the off-chip memory, which the host addresses as core 1 and whose
    answers come up to `latency` cycles late.
    """

    kind = "chip"

    def __init__(self, blueprint: Blueprint, *, simulated: bool = False) -> None:
        self.blueprint, self.simulated = blueprint, simulated
        super().__init__(chip_ports(blueprint, simulated=simulated))

    def elaborate(self, platform: Any) -> Module:
        """Place the cores and join them."""
        m = Module()
        blueprint = self.blueprint
        other = blueprint.predictor
        lanes = (1, 1) if other is None else (other.array.rows, other.array.columns)
        main = Core(blueprint.core, lanes, counts=self.simulated)
        add_submodule(m, platform, "core", main)
        self._host(m, main, ~self.host_core if other or blueprint.core.off_chip_words else 1)
        m.d.comb += [self.halted.eq(main.halted), main.go.eq(main.meets), self.host_out.eq(main.host_out)]
        if self.simulated:
            m.d.comb += [getattr(self, name).eq(getattr(main, name)) for name in COUNTERS]
            m.d.comb += [self.array_step.eq(main.array_step), self.array_leaves.eq(main.array_leaves)]
        if blueprint.core.dma_words:
            for name, member in dma_ports(blueprint.core).items():
                ours, theirs = getattr(self, name), getattr(main, name)
                m.d.comb += ours.eq(theirs) if member.flow is Out else theirs.eq(ours)
        if other is not None:
            predictor = Core(other, counts=self.simulated)
            add_submodule(m, platform, "predictor_core", predictor)
            self._join(m, main, predictor)
        elif blueprint.core.off_chip_words:
            self._off_chip(m, platform, main)
        return m

    def _host(self, m: Module, core: Core, selected: Any) -> None:
        for name in ("read", "write"):
            port = getattr(core, f"host_{name}")
            m.d.comb += [
                port.valid.eq(getattr(self, f"host_{name}") & selected),
                port.memory.eq(self.host_memory),
                port.lane.eq(self.host_lane),
                port.address.eq(self.host_address),
            ]
        m.d.comb += [
            core.start.eq(self.start),
            core.host_in.eq(self.host_in),
            core.program_write.eq(self.program_write & selected),
            core.program_slice.eq(self.program_slice),
            core.program_address.eq(self.program_address),
            core.program_in.eq(self.program_in),
        ]

    def _join(self, m: Module, main: Core, predictor: Core) -> None:
        """Let the cores meet, and give the predictor's memories to the other core's element unit while it waits."""
        self._host(m, predictor, self.host_core)
        late = Signal()
        with m.If(self.host_read):
            m.d.sync += late.eq(self.host_core)
        both = main.meets & predictor.meets
        m.d.comb += [
            main.go.eq(both),
            predictor.go.eq(both),
            self.halted.eq(main.halted & predictor.halted),
            self.host_out.eq(Mux(late, predictor.host_out, main.host_out)),
            main.remote_in.eq(predictor.host_out),
        ]
        for name in ("read", "write"):
            remote, port = getattr(main, f"remote_{name}"), getattr(predictor, f"host_{name}")
            with m.If(remote.valid):
                m.d.comb += [
                    port.valid.eq(1),
                    port.memory.eq(remote.memory[:2]),
                    port.lane.eq(remote.lane),
                    port.address.eq(remote.address),
                ]
        with m.If(main.remote_write.valid):
            m.d.comb += predictor.host_in.eq(main.remote_out)
        if self.simulated:
            m.d.comb += self.predictor_cycles.eq(predictor.cycles)

    def _off_chip(self, m: Module, platform: Any, main: Core) -> None:
        sizes = self.blueprint.core
        port = OffChipPort(sizes)
        add_submodule(m, platform, "off_chip_port", port)
        m.d.comb += [
            port.read.eq(main.remote_read.valid),
            port.read_address.eq(main.remote_read.address),
            port.write.eq(main.remote_write.valid),
            port.write_address.eq(main.remote_write.address),
            port.write_value.eq(main.remote_out),
            main.remote_in.eq(port.value),
            main.hold.eq(port.hold),
        ]
        outside: Any = self
        if self.simulated:
            outside = SimulatedMemory(sizes)
            add_submodule(m, platform, "off_chip", outside)
            m.d.comb += [
                outside.latency.eq(self.latency),
                outside.host_read.eq(self.host_read & self.host_core),
                outside.host_write.eq(self.host_write & self.host_core),
                outside.host_address.eq(self.host_address),
                outside.host_in.eq(self.host_in),
                # By the last cycle's host_core, not the last read's: while a program runs, a chip without the memory and
                # this one must have the same output.
                self.host_out.eq(Mux(delayed(m, self.host_core), outside.host_out, main.host_out)),
            ]
        for name, member in off_chip_ports(sizes).items():
            sender, taker = (port, outside) if member.flow is Out else (outside, port)
            m.d.comb += getattr(taker, name).eq(getattr(sender, name))


def chip_rtlil(blueprint: Blueprint, *, simulated: bool = False) -> str:
    """Return the chip in Yosys's language."""
    return "\n".join(chip_modules(blueprint, simulated=simulated).values())


def chip_modules(blueprint: Blueprint, *, simulated: bool = False) -> dict[str, str]:
    """Return every kind of block of the chip in Yosys's language; those inside a block come before it."""
    return to_rtlil(Chip(blueprint, simulated=simulated))
