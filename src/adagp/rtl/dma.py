"""A DMA: products whose matrices do not fit the banks, tile by tile, the next tile fetched while the array works on this one.

Half of each bank has a tile while the other half is filled. A tile stays as long as the loops do not leave it. While a tile is
multiplied the DMA first stores the result of the tile before, if that is left, and then loads what the next one needs. A result
that is left before its sum is whole is stored as sums, and loaded again when the loops come back.
"""

from typing import Any

from amaranth.hdl import Array as Choice
from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block, add_submodule
from adagp.rtl.blueprint import Blueprint, CoreSizes
from adagp.rtl.chip import Chip, chip_ports
from adagp.rtl.core import SLICE, dma_ports
from adagp.rtl.instructions import SIZE_BITS, Mode, Opcode, Store
from adagp.rtl.tile_mover import ADDRESS_BITS, INDICES, LAYOUTS, OUTSTANDING, TileMover, TileWalk, memory_ports, slices

DESCRIPTOR = (
    *("mode", "order", *INDICES, *(f"tile_{index}" for index in INDICES), "column"),
    *(f"{role}_{what}" for role in LAYOUTS for what in ("base", "pitch", "hop")),
    *("sums_base", "sums_plane"),
)
"""The registers of a descriptor, of 32 bits each, by their address."""
RESULT_ROLES = {Mode.ACROSS: "column", Mode.DOWN: "row", Mode.STATIONARY: "stationary"}
SUMMED = {Mode.ACROSS: "down", Mode.DOWN: "across", Mode.STATIONARY: "stream"}
"""The index that a product's sums run over."""
JOBS = ("store", *LAYOUTS, "sums")
"""What may be moved while a tile is multiplied, in this order: sums are stored before they are loaded again."""

RESULT = data.StructLayout(
    {"offset": unsigned(ADDRESS_BITS), "lines": unsigned(SIZE_BITS), "words": unsigned(SIZE_BITS)}
    | {"half": unsigned(1), "whole": unsigned(1)}
)
"""A tile of the result: its place in memory and in the banks, and whether its sums are complete."""


def descriptor_ports() -> dict[str, Any]:
    """Return the ports by which a host writes a descriptor, starts the DMA, and sees that it is at work."""
    index = (len(DESCRIPTOR) - 1).bit_length()
    return {
        "descriptor_write": In(1),
        "descriptor_index": In(index),
        "descriptor_in": In(32),
        "dma_start": In(1),
        "dma_busy": Out(1),
    }


def describe_dma(sizes: CoreSizes) -> dict[str, Any]:
    """Return what a driver needs to know about the DMA, as plain data."""
    return {
        "values_per_beat": sizes.dma_words,
        "parts_of_a_sum": slices(sizes),
        "reads_under_way": OUTSTANDING,
        "descriptor": {name: index for index, name in enumerate(DESCRIPTOR)},
    }


class Dma(Block):
    """Runs the product of a descriptor: it moves tiles, writes an instruction for each, and starts the chip."""

    kind = "dma"

    def __init__(self, sizes: CoreSizes) -> None:
        self.sizes = sizes
        super().__init__(
            {
                **descriptor_ports(),
                **memory_ports(sizes),
                **{name: member.flip() for name, member in dma_ports(sizes).items()},
                "start": Out(1),
                "halted": In(1),
                "program_write": Out(1),
                "program_slice": Out(6),
                "program_address": Out((sizes.program_words - 1).bit_length()),
                "program_in": Out(SLICE),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build registers, walk, mover and control."""
        m = Module()
        self._registers(m)
        self.walk, self.mover = TileWalk(), TileMover(self.sizes)
        add_submodule(m, platform, "walk", self.walk)
        add_submodule(m, platform, "mover", self.mover)
        self._join(m)
        self._tile(m)
        self._program(m)
        self._jobs(m)
        self._control(m)
        return m

    def _registers(self, m: Module) -> None:
        widths = {"mode": 2, "order": 6, "column": self.sizes.address_bits}
        widths |= dict.fromkeys((*INDICES, *(f"tile_{index}" for index in INDICES)), SIZE_BITS)
        self.field = {name: Signal(widths.get(name, ADDRESS_BITS), name=name) for name in DESCRIPTOR}
        for index, register in enumerate(self.field.values()):
            with m.If(self.descriptor_write & (self.descriptor_index == index)):
                m.d.sync += register.eq(self.descriptor_in)

    def _join(self, m: Module) -> None:
        for name, member in (memory_ports(self.sizes) | dma_ports(self.sizes)).items():
            ours, theirs = getattr(self, name), getattr(self.mover, name)
            goes_out = (member.flow is Out) == name.startswith("memory")  # `dma_ports` are as the core sees them
            m.d.comb += ours.eq(theirs) if goes_out else theirs.eq(ours)
        walk, field = self.walk, self.field
        m.d.comb += [Cat(walk.outer, walk.middle, walk.inner).eq(field["order"])]
        for index in INDICES:
            m.d.comb += [getattr(walk, f"size_{index}").eq(field[index])]
            m.d.comb += [getattr(walk, f"tile_{index}").eq(field[f"tile_{index}"])]
        m.d.comb += [getattr(walk, f"{role}_hop").eq(field[f"{role}_hop"]) for role in LAYOUTS]

    def _by_mode(self, of: dict[Mode, Any]) -> Any:
        return Choice([*(of[mode] for mode in Mode), of[Mode.STATIONARY]])[self.field["mode"]]

    def _tile(self, m: Module) -> None:
        """Compute the signals of the current tile: the halves of the banks that hold it, and its result."""
        walk, sizes = self.walk, self.sizes
        self.halves = {role: Signal(name=f"{role}_half") for role in LAYOUTS}
        self.is_result, self.banks, extents, changes = {}, {}, {}, {}
        for role, (line, word) in LAYOUTS.items():
            mode = next(mode for mode, result in RESULT_ROLES.items() if result == role)
            self.is_result[role] = self.field["mode"] == int(mode)
            values = Mux(self.halves[role], sizes.value_words // 2, 0) + (
                self.field["column"] if role == "column" else 0
            )
            sums = Mux(self.halves[role], sizes.sum_words // 2, 0)
            self.banks[role] = Signal(sizes.address_bits, name=f"{role}_bank")
            m.d.comb += self.banks[role].eq(Mux(self.is_result[role], sums, values))
            extents[role] = getattr(walk, f"extent_{line}"), getattr(walk, f"extent_{word}")
            changes[role] = getattr(walk, f"changed_{line}") | getattr(walk, f"changed_{word}")
        self.extents, self.changes = extents, changes

        def of_result(values: dict[str, Any]) -> Any:
            return self._by_mode({mode: values[role] for mode, role in RESULT_ROLES.items()})

        self.here, self.adds, self.result_changes = Signal(RESULT), Signal(), Signal()
        m.d.comb += [
            self.here.offset.eq(of_result({role: getattr(walk, f"{role}_offset") for role in LAYOUTS})),
            self.here.lines.eq(of_result({role: lines for role, (lines, _) in extents.items()})),
            self.here.words.eq(of_result({role: words for role, (_, words) in extents.items()})),
            self.here.half.eq(of_result(self.halves)),
            self.here.whole.eq(self._by_mode({mode: getattr(walk, f"last_{index}") for mode, index in SUMMED.items()})),
            self.adds.eq(~self._by_mode({mode: getattr(walk, f"first_{index}") for mode, index in SUMMED.items()})),
            self.result_changes.eq(of_result(changes)),
        ]
        self.result_base, self.result_pitch = Signal(ADDRESS_BITS), Signal(ADDRESS_BITS)
        m.d.comb += [
            self.result_base.eq(of_result({role: self.field[f"{role}_base"] for role in LAYOUTS})),
            self.result_pitch.eq(of_result({role: self.field[f"{role}_pitch"] for role in LAYOUTS})),
        ]

    def _program(self, m: Module) -> None:
        """Write the tile's instruction, and a HALT behind it, a slice a cycle; `programmed` when that is done."""
        layout = self.sizes.encoding.layout(self.sizes.encoding.array)
        count = -(-layout.size // SLICE)
        word, number, halt = Signal(layout), Signal(range(count + 2), init=count + 1), Signal()
        parts = Choice([word.as_value()[first : first + SLICE] for first in range(0, layout.size, SLICE)])
        self.program_begins, self.programmed = Signal(), Signal()
        m.d.comb += [word.operation.eq(int(Opcode.ARRAY)), word.mode.eq(self.field["mode"]), word.adds.eq(self.adds)]
        m.d.comb += [getattr(word, index).eq(getattr(self.walk, f"extent_{index}")) for index in INDICES]
        m.d.comb += [getattr(word, role).eq(self.banks[role]) for role in LAYOUTS]
        m.d.comb += [
            self.programmed.eq(number == count + 1),
            halt.eq(number == count),
            self.program_write.eq(~self.programmed),
            self.program_address.eq(halt),
            self.program_slice.eq(Mux(halt, 0, number)),
            self.program_in.eq(Mux(halt, int(Opcode.HALT), parts[number])),
        ]
        with m.If(self.program_begins):
            m.d.sync += number.eq(0)
        with m.Elif(~self.programmed):
            m.d.sync += number.eq(number + 1)

    def _jobs(self, m: Module) -> None:
        """Begin the first of the jobs that are left, with `next_job`."""
        mover, field = self.mover, self.field
        self.jobs, self.next_job, self.leaving = Signal(len(JOBS)), Signal(), Signal(RESULT)
        leaving, here = self.leaving, self.here
        result_sums = Mux(field["mode"] == int(Mode.DOWN), int(Store.ROW_SUMS), int(Store.COLUMN_SUMS))
        m.d.comb += [mover.plane.eq(field["sums_plane"]), mover.start.eq(self.next_job & self.jobs.any())]
        for number, job in enumerate(JOBS):
            begin = m.If(self.jobs[0]) if number == 0 else m.Elif(self.jobs[number])
            with begin:
                with m.If(self.next_job):
                    m.d.sync += self.jobs[number].eq(0)
                if job in LAYOUTS:
                    m.d.comb += [
                        mover.memory.eq(int(Store.ROW_VALUES if job == "row" else Store.COLUMN_VALUES)),
                        mover.lines.eq(self.extents[job][0]),
                        mover.words.eq(self.extents[job][1]),
                        mover.bank.eq(self.banks[job]),
                        mover.external.eq(field[f"{job}_base"] + getattr(self.walk, f"{job}_offset")),
                        mover.pitch.eq(field[f"{job}_pitch"]),
                    ]
                    continue
                tile = leaving if job == "store" else here
                sums = ~leaving.whole if job == "store" else 1
                m.d.comb += [
                    mover.store.eq(int(job == "store")),
                    mover.sums.eq(sums),
                    mover.memory.eq(result_sums),
                    mover.lines.eq(tile.lines),
                    mover.words.eq(tile.words),
                    mover.bank.eq(Mux(tile.half, self.sizes.sum_words // 2, 0)),
                    mover.external.eq(Mux(sums, field["sums_base"], self.result_base) + tile.offset),
                    mover.pitch.eq(self.result_pitch),
                ]

    def _control(self, m: Module) -> None:
        """Move, wait for the array, launch, and go to the next tile."""
        walk, mover, current = self.walk, self.mover, Signal(RESULT)
        left_result, ending, stored = Signal(), Signal(), Signal()
        m.d.comb += self.dma_busy.eq(1)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.dma_busy.eq(0)
                m.d.comb += walk.begin.eq(self.dma_start)
                with m.If(self.dma_start):
                    m.d.sync += [half.eq(0) for half in self.halves.values()]
                    m.d.sync += [left_result.eq(0), ending.eq(0), stored.eq(0)]
                    m.d.sync += self.jobs.eq(Cat(0, *(~self.is_result[role] for role in LAYOUTS), 0))
                    m.next = "PREPARE"
            with m.State("PREPARE"):
                m.d.comb += self.program_begins.eq(1)
                m.d.sync += self.jobs[-1].eq(left_result & self.adds)
                m.next = "NEXT"
            with m.State("NEXT"):
                m.d.comb += self.next_job.eq(1)
                m.next = "MOVE"
                with m.If(~self.jobs.any()):
                    m.next = "READY"
            with m.State("MOVE"), m.If(~mover.busy):
                m.next = "NEXT"
            with m.State("READY"), m.If(self.halted & self.programmed & ~mover.waiting):
                m.d.sync += [self.leaving.eq(current), current.eq(self.here)]
                with m.If(stored):
                    m.next = "IDLE"
                with m.Elif(ending):
                    m.d.sync += [self.jobs[0].eq(1), stored.eq(1)]
                    m.next = "NEXT"
                with m.Else():
                    m.d.comb += self.start.eq(1)
                    m.next = "ADVANCE"
            with m.State("ADVANCE"):
                m.d.sync += self.jobs[0].eq(left_result)
                with m.If(walk.final):
                    m.d.sync += ending.eq(1)
                    m.next = "NEXT"
                with m.Else():
                    m.d.comb += walk.advance.eq(1)
                    m.d.sync += left_result.eq(self.result_changes)
                    for number, role in enumerate(LAYOUTS):
                        m.d.sync += self.halves[role].eq(self.halves[role] ^ self.changes[role])
                        m.d.sync += self.jobs[1 + number].eq(self.changes[role] & ~self.is_result[role])
                    m.next = "PREPARE"


class DmaChip(Block):
    """A chip with its DMA. The host has the chip's own ports while the DMA is not busy."""

    kind = "dma_chip"

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        inside = dma_ports(blueprint.core)
        self._chip_ports = {name: port for name, port in chip_ports(blueprint).items() if name not in inside}
        super().__init__(self._chip_ports | descriptor_ports() | memory_ports(blueprint.core))

    def elaborate(self, platform: Any) -> Module:
        """Join the chip and the DMA."""
        m = Module()
        chip, dma = Chip(self.blueprint), Dma(self.blueprint.core)
        add_submodule(m, platform, "chip", chip)
        add_submodule(m, platform, "dma", dma)
        for block, ports in (
            (chip, self._chip_ports),
            (dma, descriptor_ports() | memory_ports(self.blueprint.core)),
        ):
            for name, member in ports.items():
                ours, theirs = getattr(self, name), getattr(block, name)
                m.d.comb += ours.eq(theirs) if member.flow is Out else theirs.eq(ours)
        for name, member in dma_ports(self.blueprint.core).items():
            ours, theirs = getattr(chip, name), getattr(dma, name)
            m.d.comb += theirs.eq(ours) if member.flow is Out else ours.eq(theirs)
        m.d.comb += dma.halted.eq(chip.halted)
        with m.If(dma.dma_busy):
            names = ("start", "program_write", "program_slice", "program_address", "program_in")
            m.d.comb += [getattr(chip, name).eq(getattr(dma, name)) for name in names]
            m.d.comb += [chip.host_read.eq(0), chip.host_write.eq(0), chip.host_core.eq(0)]
        return m
