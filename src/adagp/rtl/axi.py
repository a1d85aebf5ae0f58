"""A chip on a bus: AXI-Lite for control, status and programs, AXI-Stream for matrices, and an interrupt.

The wrapper checks what the chip's own ports leave to the driver: an access that the chip could not serve is answered with an
error (SLVERR) and does nothing.
"""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block, add_submodule
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import Chip
from adagp.rtl.core import SLICE
from adagp.rtl.instructions import SIZE_BITS
from adagp.rtl.matrix_stream import MatrixStream, stream_bits, stream_ports
from adagp.rtl.off_chip import off_chip_ports

REGISTERS = {
    "control": 0x00,
    "status": 0x04,
    "interrupt_enable": 0x08,
    "interrupt_pending": 0x0C,
    "core": 0x10,
    "memory": 0x14,
    "address": 0x18,
    "lines": 0x1C,
    "words": 0x20,
    "cycles": 0x24,
}
"""Byte addresses of the registers of 32 bits."""
COMMANDS = {"start": 0, "load": 1, "store": 2}
"""Bits of `control`; those of both interrupt registers are the ends of the same three."""
STATUS = {"halted": 0, "loading": 1, "storing": 2, "misplaced_last": 3}
SLVERR = 2


def program_window(blueprint: Blueprint) -> dict[str, int]:
    """Return the addresses of programs: where they begin, and the bytes of an instruction and of a core's program there."""
    slices = max(-(-core.encoding.bits // SLICE) for core in blueprint.cores)
    instruction = 4 << (slices - 1).bit_length()
    core = instruction << (max(core.program_words for core in blueprint.cores) - 1).bit_length()
    return {
        "base": max(64, core << (len(blueprint.cores) - 1)),
        "instruction_bytes": instruction,
        "core_bytes": core,
    }


def describe_axi(blueprint: Blueprint) -> dict[str, Any]:
    """Return what a driver needs to know about the wrapper, as plain data."""
    return {
        "registers": REGISTERS,
        "control_bits": COMMANDS,
        "status_bits": STATUS,
        "program": program_window(blueprint),
        "address_bits": program_window(blueprint)["base"].bit_length(),
        "stream_bits": stream_bits(blueprint),
    }


def _lite_ports(address: int) -> dict[str, Any]:
    requests = {"awaddr": address, "awprot": 3, "awvalid": 1, "wdata": 32, "wstrb": 4, "wvalid": 1, "bready": 1}
    requests |= {"araddr": address, "arprot": 3, "arvalid": 1, "rready": 1}
    answers = {"awready": 1, "wready": 1, "bresp": 2, "bvalid": 1, "arready": 1, "rdata": 32, "rresp": 2, "rvalid": 1}
    ports = {name: In(bits) for name, bits in requests.items()} | {name: Out(bits) for name, bits in answers.items()}
    return {f"s_axil_{name}": port for name, port in ports.items()}


class AxiChip(Block):
    """A chip with its wrapper. Clock `aclk`, reset `aresetn` (low, synchronous); off-chip memory is attached as to the chip."""

    kind = "axi_chip"

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self._window = program_window(blueprint)
        sizes = blueprint.core
        super().__init__(
            {
                "aclk": In(1),
                "aresetn": In(1),
                "irq": Out(1),
                **_lite_ports(self._window["base"].bit_length()),
                **stream_ports(blueprint),
                **(off_chip_ports(sizes) if sizes.off_chip_words else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Place the chip and build the wrapper."""
        m = Module()
        m.domains.sync = ClockDomain()
        m.d.comb += [ClockSignal().eq(self.aclk), ResetSignal().eq(~self.aresetn)]
        self.chip, self.stream = Chip(self.blueprint), MatrixStream(self.blueprint)
        add_submodule(m, platform, "chip", self.chip)
        add_submodule(m, platform, "stream", self.stream)
        self._registers(m)
        self._join(m)
        self._write(m)
        self._read(m)
        return m

    def _registers(self, m: Module) -> None:
        """Build registers, interrupts and the counter of a run's cycles."""
        address = max(core.address_bits for core in self.blueprint.cores)
        self.enable, self.pending, clears = (Signal(3, name=name) for name in ("enable", "pending", "clears"))
        self.clears = clears
        self.shape = {
            "core": Signal(1, name="core"),
            "memory": Signal(2, name="memory"),
            "address": Signal(address, name="address"),
            "lines": Signal(SIZE_BITS, name="lines"),
            "words": Signal(SIZE_BITS, name="words"),
        }
        self.running, self.cycles, self.idle = Signal(), Signal(32), Signal()
        halts, chip, stream = Signal(), self.chip, self.stream
        ends = Cat(halts, stream.ends & stream.loading, stream.ends & stream.storing)
        m.d.comb += [
            halts.eq(self.running & chip.halted),
            self.idle.eq(~self.running & ~stream.loading & ~stream.storing),
            self.irq.eq((self.pending & self.enable).any()),
        ]
        m.d.sync += self.pending.eq((self.pending & ~clears) | ends)
        with m.If(chip.start):
            m.d.sync += [self.running.eq(1), self.cycles.eq(0)]
        with m.Elif(halts):
            m.d.sync += self.running.eq(0)
        with m.Elif(self.running):
            m.d.sync += self.cycles.eq(self.cycles + 1)

    def _join(self, m: Module) -> None:
        chip, stream, shape = self.chip, self.stream, self.shape
        m.d.comb += [
            chip.host_memory.eq(shape["memory"]),
            chip.host_core.eq(shape["core"]),
            *(getattr(chip, f"host_{name}").eq(getattr(stream, f"host_{name}")) for name in ("read", "write", "lane")),
            chip.host_address.eq(stream.host_address),
            chip.host_in.eq(stream.host_in),
            stream.host_out.eq(chip.host_out),
            stream.base.eq(shape["address"]),
            *(getattr(stream, name).eq(shape[name]) for name in ("core", "memory", "lines", "words")),
        ]
        outside = stream_ports(self.blueprint)
        for part, ports in ((stream, outside), (chip, self._off_chip)):
            for name, member in ports.items():
                ours, theirs = getattr(self, name), getattr(part, name)
                m.d.comb += ours.eq(theirs) if member.flow is Out else theirs.eq(ours)

    @property
    def _off_chip(self) -> dict[str, Any]:
        return off_chip_ports(self.blueprint.core) if self.blueprint.core.off_chip_words else {}

    def _write(self, m: Module) -> None:
        """Take a write when address and data are both there and the last answer is gone."""
        take, fine, whole = Signal(), Signal(), Signal()
        data, address, base = self.s_axil_wdata, self.s_axil_awaddr, self._window["base"]
        m.d.comb += [
            take.eq(self.s_axil_awvalid & self.s_axil_wvalid & ~self.s_axil_bvalid),
            whole.eq(self.s_axil_wstrb.all()),
            self.s_axil_awready.eq(take),
            self.s_axil_wready.eq(take),
        ]
        with m.If(take):
            m.d.sync += [self.s_axil_bvalid.eq(1), self.s_axil_bresp.eq(Mux(fine & whole, 0, SLVERR))]
        with m.Elif(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(address >= base):
            self._write_program(m, take & whole, fine, address - base)
        with m.Else(), m.Switch(address[2 : (base - 1).bit_length()]):
            with m.Case(REGISTERS["control"] >> 2):
                self._command(m, take & whole, fine)
            with m.Case(REGISTERS["interrupt_enable"] >> 2):
                m.d.comb += fine.eq(data < 1 << len(self.enable))
                with m.If(take & whole & fine):
                    m.d.sync += self.enable.eq(data)
            with m.Case(REGISTERS["interrupt_pending"] >> 2):
                m.d.comb += [fine.eq(1), self.clears.eq(Mux(take & whole, data, 0))]
            for name, register in self.shape.items():
                limit = len(self.blueprint.cores) if name == "core" else 1 << len(register)
                with m.Case(REGISTERS[name] >> 2):
                    m.d.comb += fine.eq((data < limit) & self.idle)
                    with m.If(take & whole & fine):
                        m.d.sync += register.eq(data)

    def _command(self, m: Module, take: Any, fine: Signal) -> None:
        """Start the programs, or a matrix: one at a time, and nothing while anything is at work."""
        data, parts = self.s_axil_wdata, (self.chip.start, self.stream.load, self.stream.store)
        some = (self.shape["lines"] != 0) & (self.shape["words"] != 0)
        one = [data == 1 << bit for bit in COMMANDS.values()]
        m.d.comb += fine.eq(self.idle & (one[0] | (some & (one[1] | one[2]))))
        m.d.comb += [part.eq(take & fine & chosen) for part, chosen in zip(parts, one, strict=True)]

    def _write_program(self, m: Module, take: Any, fine: Signal, offset: Value) -> None:
        """Write a slice of an instruction of a core, if there is one at this address."""
        chip, cores = self.chip, self.blueprint.cores
        low, high = (self._window[name].bit_length() - 1 for name in ("instruction_bytes", "core_bytes"))
        slice_, address = offset[2:low], offset[low:high]
        core = offset[high] if len(cores) > 1 else 0
        there = [(slice_ < -(-sizes.encoding.bits // SLICE)) & (address < sizes.program_words) for sizes in cores]
        m.d.comb += [
            fine.eq(self.idle & (Mux(core, there[-1], there[0]))),
            chip.program_write.eq(take & fine),
            chip.program_slice.eq(slice_),
            chip.program_address.eq(address),
            chip.program_in.eq(self.s_axil_wdata),
            chip.host_core.eq(core),
        ]

    def _read(self, m: Module) -> None:
        """Answer reads of registers; programs cannot be read."""
        found, word = Signal(), Signal(32)
        status = Cat(~self.running, self.stream.loading, self.stream.storing, self.stream.misplaced)
        words = {"status": status, "interrupt_enable": self.enable, "interrupt_pending": self.pending}
        words |= self.shape | {"cycles": self.cycles}
        m.d.comb += self.s_axil_arready.eq(~self.s_axil_rvalid)
        with m.Switch(self.s_axil_araddr[2:]):
            for name, value in words.items():
                with m.Case(REGISTERS[name] >> 2):
                    m.d.comb += [found.eq(1), word.eq(value)]
        with m.If(self.s_axil_arvalid & self.s_axil_arready):
            m.d.sync += [
                self.s_axil_rvalid.eq(1),
                self.s_axil_rdata.eq(word),
                self.s_axil_rresp.eq(Mux(found, 0, SLVERR)),
            ]
        with m.Elif(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
