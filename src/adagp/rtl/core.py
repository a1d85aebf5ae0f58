"""A core: array, lanes, sequencer, element unit, and the program that drives them."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Array as Choice
from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Bank, Block, add_submodule, delayed
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.element_unit import ElementUnit, is_here, is_remote, request
from adagp.rtl.instructions import SCALE_BITS, Opcode, Store
from adagp.rtl.lane import Lane
from adagp.rtl.processing_element import ArrayElement, Element, GroupedElement
from adagp.rtl.sequencer import Sequencer

SLICE = 32
"""Bits of an instruction that are written at a time."""
COUNTERS = ("cycles", "elapsed", "element_cycles", "reads", "writes", "stalls")


def dma_ports(sizes: CoreSizes) -> dict[str, Any]:
    """Return the ports of a DMA to the banks, as a core sees them: words for `count` lanes from `lane` on, at one address, and
    the sums of as many lanes a cycle after they were asked for. `lane` is a multiple of the words that a DMA moves at once."""
    place = {"valid": 1, "memory": 2, "lane": sizes.lane_bits, "address": sizes.address_bits}
    count = {"count": sizes.dma_words.bit_length()}
    read, write = (
        data.StructLayout({name: unsigned(bits) for name, bits in fields.items()}) for fields in (place, place | count)
    )
    words = sizes.dma_words * sizes.number.word_bits
    return {"dma_write": In(write), "dma_in": In(words), "dma_read": In(read), "dma_out": Out(words)}


class Core(Block):
    """One array with everything around it. `host_*` reaches its memories while it does not compute.

    With `counts` it has counters: `cycles` of the array (adagp.hw's), `elapsed` from start to halt, `element_cycles`, the
    `reads` and `writes` of words by the array, and `stalls`, in which off-chip memory held the element unit. They are for
    simulations only.
    """

    def __init__(self, sizes: CoreSizes, remote_lanes: tuple[int, int] = (1, 1), *, counts: bool = False) -> None:
        self.sizes, self.remote_lanes, self.counts = sizes, remote_lanes, counts
        self.kind = f"{sizes.prefix}core"
        number = sizes.number
        port = request(sizes, sizes.encoding.lane_bits)
        self.slices = -(-sizes.encoding.bits // SLICE)
        counters = {name: Out(48) for name in COUNTERS} if counts else {}
        super().__init__(
            {
                "start": In(1),
                "halted": Out(1),
                "meets": Out(1),
                "go": In(1),
                "program_write": In(1),
                "program_slice": In(range(self.slices)),
                "program_address": In(range(sizes.program_words)),
                "program_in": In(SLICE),
                "host_read": In(port),
                "host_write": In(port),
                "host_in": In(number.word_bits),
                "host_out": Out(number.word_bits),
                "remote_read": Out(port),
                "remote_write": Out(port),
                "remote_in": In(number.sum_bits),
                "remote_out": Out(number.value_bits),
                **({"hold": In(1)} if sizes.off_chip_words else {}),
                **(dma_ports(sizes) if sizes.dma_words else {}),
                "array_step": Out(1),
                "array_leaves": Out(1),
                **counters,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build and connect."""
        m = Module()
        self.unit = ElementUnit(self.sizes, self.remote_lanes)
        self.sequencer = Sequencer(self.sizes)
        add_submodule(m, platform, "element_unit", self.unit)
        add_submodule(m, platform, "sequencer", self.sequencer)
        self._lanes(m, platform)
        self._grid(m, platform)
        self._ports(m)
        if self.sizes.dma_words:
            self._dma(m)
        self._control(m, platform)
        if self.counts:
            self._count(m)
        return m

    def _lanes(self, m: Module, platform: Any) -> None:
        array, sequencer = self.sizes.array, self.sequencer
        own, pools = self.sizes.predictor_words, self.sizes.pool_words > 0
        self.rows = [Lane(self.sizes) for _ in range(array.rows)]
        self.columns = [Lane(self.sizes, predictor_words=own, pools=pools) for _ in range(array.columns)]
        for side, lanes in (("row", self.rows), ("column", self.columns)):
            read, write = getattr(sequencer, f"{side}_read"), getattr(sequencer, f"{side}_write")
            for index, lane in enumerate(lanes):
                add_submodule(m, platform, f"{side}_lane_{index}", lane)
                m.d.comb += [lane.index.eq(index), lane.read.eq(read), lane.write.eq(write)]
                read, write = lane.read_out, lane.write_out
        if pools:
            pool = sequencer.pool
            for lane in self.columns:
                m.d.comb += lane.pool.eq(pool)
                pool = lane.pool_out

    def _grid(self, m: Module, platform: Any) -> None:
        """Place the elements; what leaves at the edges goes to the lanes."""
        above: list[tuple[Any, Any]] = [(lane.tag, lane.data) for lane in self.columns]
        for row, lane in enumerate(self.rows):
            # A register a row: the sequencer's own would drive every PE. Mode and clear come before the first words anyway.
            mode, clear = Signal(2, name=f"mode_{row}"), Signal(name=f"clear_{row}")
            m.d.sync += [mode.eq(self.sequencer.mode), clear.eq(self.sequencer.clear)]
            from_left: tuple[Any, Any, Any] = (lane.step, lane.last, lane.data)
            elements = [self._element() for _ in range(self.sizes.array.columns)]
            self._join_groups(m, row, elements)
            for column, element in enumerate(elements):
                add_submodule(m, platform, f"element_{row}_{column}", element)
                m.d.comb += [
                    element.mode.eq(mode),
                    element.clear.eq(clear),
                    Cat(element.step, element.last, element.beside).eq(Cat(*from_left)),
                    Cat(element.tag, element.above).eq(Cat(*above[column])),
                ]
                from_left = (element.step_out, element.last_out, element.beside_out)
                above[column] = (element.tag_out, element.above_out)
            m.d.comb += lane.result.eq(from_left[2])
        m.d.comb += [lane.result.eq(above[column][1]) for column, lane in enumerate(self.columns)]
        leaves = delayed(m, from_left[0], self.sizes.stages)
        m.d.comb += [self.array_step.eq(self.rows[0].step | self.columns[0].tag), self.array_leaves.eq(leaves)]

    def _element(self) -> ArrayElement:
        groups, stages = self.sizes.groups, self.sizes.stages
        return Element(self.sizes.single, stages) if groups is None else groups.element(stages)

    def _join_groups(self, m: Module, row: int, elements: Sequence[ArrayElement]) -> None:
        """Connect what elements of grouped formats need in addition: which chunks are multiplied, and the exponents."""
        part = self.rows[row].part if self.sizes.groups is not None else None
        wide, scale = Signal(name=f"wide_{row}"), Signal(SCALE_BITS, name=f"scale_{row}")
        for element in elements:
            if isinstance(element, GroupedElement):
                m.d.sync += [wide.eq(self.sequencer.wide), scale.eq(self.sequencer.scale)]
                m.d.comb += [element.part.eq(part), element.wide.eq(wide), element.scale.eq(scale)]
                part = element.part_out

    def _ports(self, m: Module) -> None:
        """Connect the memories to the element unit, or to the host while that unit is not running.

        While off-chip memory stalls the unit, nothing is read or written here; banks keep the word that was read last.
        """
        unit, number = self.unit, self.sizes.number
        steps: Any = Const(1)
        if self.sizes.off_chip_words:
            steps = ~self.hold
            m.d.comb += unit.hold.eq(self.hold)
        first, result = Signal(self.host_read.shape()), Signal(self.host_write.shape())
        written = Signal(number.value_bits)
        m.d.comb += [
            first.eq(Mux(unit.busy, unit.first.as_value(), self.host_read.as_value())),
            result.eq(Mux(unit.busy, unit.result.as_value(), self.host_write.as_value())),
            written.eq(Mux(unit.busy, unit.result_value, self.host_in)),
        ]
        second, by_host = unit.second, self.host_write.valid & ~unit.busy
        reads_first, reads_second, writes = first.valid & steps, second.valid & steps, result.valid & steps
        for side, lanes in (("ROW", self.rows), ("COLUMN", self.columns)):
            values, sums = Store[f"{side}_VALUES"], Store[f"{side}_SUMS"]
            by_first = reads_first & is_here(first.memory, values)
            by_second = reads_second & is_here(second.memory, values)
            for index, lane in enumerate(lanes):
                m.d.comb += [
                    lane.value_read.eq((by_first & (first.lane == index)) | (by_second & (second.lane == index))),
                    lane.value_address.eq(Mux(by_first, first.address, second.address)),
                    lane.sum_read.eq(reads_first & is_here(first.memory, sums) & (first.lane == index)),
                    lane.sum_address.eq(first.address),
                    lane.value_write.eq(writes & is_here(result.memory, values) & (result.lane == index)),
                    lane.value_write_address.eq(result.address),
                    lane.value_in.eq(written),
                    lane.sum_write.eq(
                        by_host & is_here(self.host_write.memory, sums) & (self.host_write.lane == index)
                    ),
                    lane.sum_write_address.eq(self.host_write.address),
                    lane.sum_in.eq(self.host_in),
                ]
        late = [Signal(first.shape(), name=f"late_{name}") for name in ("first", "second")]
        for operand, valid, seen in zip((first, second), (reads_first, reads_second), late, strict=True):
            with m.If(valid):
                m.d.sync += seen.eq(operand)
        values, sums = self._chosen(m, late[0])
        remote = is_remote(late[0].memory)
        m.d.comb += [
            unit.first_value.eq(Mux(remote, self.remote_in, values)),
            unit.first_sum.eq(Mux(remote, self.remote_in, sums)),
            unit.second_value.eq(Mux(is_remote(late[1].memory), self.remote_in, self._chosen(m, late[1])[0])),
            self.host_out.eq(Mux(late[0].memory[0], sums, values)),
            self.remote_read.eq(Mux(is_remote(unit.first.memory), unit.first.as_value(), unit.second.as_value())),
            self.remote_read.valid.eq(
                unit.first.valid & (is_remote(unit.first.memory) | is_remote(unit.second.memory))
            ),
            self.remote_write.eq(unit.result),
            self.remote_write.valid.eq(unit.result.valid & is_remote(unit.result.memory)),
            self.remote_out.eq(unit.result_value),
        ]

    def _dma(self, m: Module) -> None:
        """Let a DMA write values and sums of some lanes at once, and read their sums, while the array uses other words."""
        words, number = self.sizes.dma_words, self.sizes.number
        write, read = self.dma_write, self.dma_read
        outputs = Signal(len(self.dma_out))
        for side, lanes in (("ROW", self.rows), ("COLUMN", self.columns)):
            values, sums = int(Store[f"{side}_VALUES"]), int(Store[f"{side}_SUMS"])
            for index, lane in enumerate(lanes):
                place = index % words
                word = self.dma_in.word_select(place, number.word_bits)
                written = write.valid & (write.lane == index - place) & (place < write.count)
                with m.If(written & (write.memory == values)):
                    m.d.comb += [
                        lane.value_write.eq(1),
                        lane.value_write_address.eq(write.address),
                        lane.value_in.eq(word),
                    ]
                with m.If(written & (write.memory == sums)):
                    m.d.comb += [lane.sum_write.eq(1), lane.sum_write_address.eq(write.address), lane.sum_in.eq(word)]
                with m.If(read.valid & (read.memory == sums) & (read.lane == index - place)):
                    m.d.comb += [lane.sum_read.eq(1), lane.sum_address.eq(read.address)]
        late = Signal(read.shape())
        with m.If(read.valid):
            m.d.sync += late.eq(read)
        groups = [
            (late.memory == int(Store[f"{side}_SUMS"])) & (late.lane == first)
            for side, lanes in (("ROW", self.rows), ("COLUMN", self.columns))
            for first in range(0, len(lanes), words)
        ]
        totals = [
            Cat(*(lane.total for lane in lanes[first : first + words]))
            for lanes in (self.rows, self.columns)
            for first in range(0, len(lanes), words)
        ]
        for chosen, total in zip(groups, totals, strict=True):
            with m.If(chosen):
                m.d.comb += outputs.eq(total)
        m.d.comb += self.dma_out.eq(outputs)

    def _chosen(self, m: Module, late: Any) -> tuple[Any, Any]:
        """Return the value and the sum that a request of the last cycle was for."""
        chosen = []
        for name in ("value", "total"):
            sides = (Choice([getattr(lane, name) for lane in lanes])[late.lane] for lanes in (self.columns, self.rows))
            word = Signal(len(getattr(self.rows[0], name)))
            m.d.comb += word.eq(Mux(late.memory[1], *sides))
            chosen.append(word)
        return chosen[0], chosen[1]

    def _control(self, m: Module, platform: Any) -> None:
        """Fetch, decode, run: one instruction after the other."""
        sizes = self.sizes
        word, counter = Signal(self.slices * SLICE), Signal(range(sizes.program_words))
        for slice_ in range(self.slices):
            bank = Bank(sizes.program_words, SLICE)
            add_submodule(m, platform, f"program_{slice_}", bank)
            m.d.comb += [
                bank.address.eq(counter),
                bank.read.eq(Const(1)),
                word[slice_ * SLICE : (slice_ + 1) * SLICE].eq(bank.data),
                bank.write_address.eq(self.program_address),
                bank.write_data.eq(self.program_in),
                bank.write.eq(self.program_write & (self.program_slice == slice_)),
            ]
        m.d.comb += [self.sequencer.instruction.as_value().eq(word), self.unit.instruction.as_value().eq(word)]
        with m.FSM():
            with m.State("HALTED"):
                m.d.comb += self.halted.eq(1)
                m.d.sync += counter.eq(0)
                with m.If(self.start):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.next = "DECODE"
            with m.State("DECODE"), m.Switch(word[:2]):
                with m.Case(int(Opcode.HALT)):
                    m.next = "HALTED"
                with m.Case(int(Opcode.ARRAY)):
                    m.d.comb += self.sequencer.start.eq(1)
                    m.next = "RUN"
                with m.Case(int(Opcode.ELEMENTS)):
                    m.d.comb += self.unit.start.eq(1)
                    m.next = "RUN"
                with m.Case(int(Opcode.MEET)):
                    m.d.comb += self.meets.eq(1)
                    with m.If(self.go):
                        m.d.sync += counter.eq(counter + 1)
                        m.next = "FETCH"
            with m.State("RUN"), m.If(self.sequencer.done | self.unit.done):
                m.d.sync += counter.eq(counter + 1)
                m.next = "FETCH"

    def _count(self, m: Module) -> None:
        lanes = self.rows + self.columns

        def active(command: Any, lane: Lane) -> Any:
            return command.valid & (lane.index < command.count)

        m.d.sync += [
            self.cycles.eq(self.cycles + self.sequencer.busy),
            self.elapsed.eq(self.elapsed + ~self.halted),
            self.element_cycles.eq(self.element_cycles + self.unit.busy),
            self.reads.eq(self.reads + sum(active(lane.read, lane) for lane in lanes)),
            self.writes.eq(self.writes + sum(active(lane.write, lane) for lane in lanes)),
            self.stalls.eq(self.stalls + (self.hold if self.sizes.off_chip_words else 0)),
        ]
        with m.If(self.start):
            m.d.sync += [getattr(self, name).eq(0) for name in COUNTERS]
