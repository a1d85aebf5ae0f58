"""The element unit: three nested loops over elements of memories, one multiply-add an element and a cycle.

It does what is not a matrix product: activations and their derivatives, batch means, errors, weight updates, and moving words
from lane to lane. Per element it computes start + factor * second. Options set this to zero if it is negative (`relu`) or if
`second` is not positive (`gate`), or, in cores that pool, multiply it by the share of one output in a mean. The result is
rounded to a value and written.
"""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import EnableInserter, Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from adagp.rtl import gates
from adagp.rtl.block import Block, delayed
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.instructions import LOOPS, REMOTE, SIZE_BITS, Start, Store

OPERANDS = ("first", "second", "result")
UNIT_STAGES = 4
"""Registers between operands and result of a unit with pipeline stages: a run over elements takes this many cycles more."""


def request(sizes: CoreSizes, lane_bits: int) -> data.StructLayout:
    """Return the layout of an access: a memory, a lane of it, an address."""
    return data.StructLayout(
        {
            "valid": unsigned(1),
            "memory": unsigned(3),
            "lane": unsigned(lane_bits),
            "address": unsigned(sizes.address_bits),
        }
    )


@dataclass(frozen=True)
class Position:
    """Where a loop stands in a memory."""

    lane: Signal
    address: Signal


class ElementUnit(Block):
    """Runs one instruction. Data of a request come a cycle later; a result is written in the same cycle, or behind the stages.

    `remote_lanes` is the number of lanes behind the remote port, rows and columns; a lane number wraps there. If that port
    leads off the chip, `hold` stalls the unit for a cycle.
    """

    def __init__(self, sizes: CoreSizes, remote_lanes: tuple[int, int] = (1, 1)) -> None:
        self.sizes, self.remote_lanes = sizes, remote_lanes
        self.kind = f"{sizes.prefix}element_unit"
        self.lane_bits = sizes.encoding.lane_bits
        port = request(sizes, self.lane_bits)
        super().__init__(
            {
                "start": In(1),
                "instruction": In(sizes.encoding.layout(sizes.encoding.elements)),
                "done": Out(1),
                "busy": Out(1),
                **({"hold": In(1)} if sizes.off_chip_words else {}),
                **{name: Out(port) for name in OPERANDS},
                "first_value": In(sizes.number.value_bits),
                "first_sum": In(sizes.number.sum_bits),
                "second_value": In(sizes.number.value_bits),
                "result_value": Out(sizes.number.value_bits),
            }
        )

    def elaborate(self, platform: Any) -> Any:
        """Build loops and arithmetic; grouped formats have no elements, and the unit is done at once."""
        m = Module()
        if self.sizes.groups is not None:
            m.d.sync += self.done.eq(self.start)
            return m
        job = Signal(self.instruction.shape())
        running, begins = Signal(), Signal()
        ends = self._loops(m, job, running)
        level = Signal(range(LOOPS))
        m.d.comb += level.eq(Mux(~ends[2], 2, Mux(~ends[1], 1, 0)))
        finished = Signal()
        m.d.comb += finished.eq(ends[0] & ends[1] & ends[2])

        positions = {name: self._walk(m, name, job, level, running) for name in OPERANDS}
        late = Signal()
        m.d.sync += late.eq(running)
        before, writes, busy = running, late, running | late
        for _ in range(UNIT_STAGES * self.sizes.stages):
            before, writes = writes, delayed(m, writes)
            busy = busy | writes
        m.d.comb += self.busy.eq(busy)
        with m.If(self.start):
            m.d.sync += [job.eq(self.instruction), running.eq(1), begins.eq(1)]
        with m.Elif(running):
            m.d.sync += [begins.eq(ends[2]), running.eq(~finished)]
        m.d.comb += self.done.eq(writes & ~before & (~self.hold if self.sizes.off_chip_words else 1))
        for name in ("first", "second"):
            self._request(m, getattr(self, name), positions[name], job[f"{name}_memory"], running)
        self._compute(m, job, positions["result"], running, begins, ends[2], writes)
        return EnableInserter(~self.hold)(m) if self.sizes.off_chip_words else m

    def _loops(self, m: Module, job: Any, running: Any) -> list[Any]:
        """Return for each loop whether it is in its last round: registers, as much depends on them in a cycle."""
        left = [Signal(SIZE_BITS, name=f"left{loop}") for loop in range(LOOPS)]
        ends = [Signal(name=f"ends{loop}") for loop in range(LOOPS)]
        advances = running
        for loop in reversed(range(LOOPS)):
            begin, count = self.instruction[f"count{loop}"], job[f"count{loop}"]
            with m.If(self.start):
                m.d.sync += [left[loop].eq(begin), ends[loop].eq(begin == 1)]
            with m.Elif(advances):
                m.d.sync += [
                    left[loop].eq(Mux(ends[loop], count, left[loop] - 1)),
                    ends[loop].eq(Mux(ends[loop], count == 1, left[loop] == 2)),
                ]
            advances = advances & ends[loop]
        return ends

    def _request(self, m: Module, port: Any, position: Position, memory: Any, valid: Any) -> None:
        m.d.comb += [
            port.valid.eq(valid),
            port.memory.eq(memory),
            port.lane.eq(position.lane),
            port.address.eq(position.address),
        ]

    def _walk(self, m: Module, name: str, job: Any, level: Any, running: Any) -> Position:
        """Return the position of an operand, which moves with the loops; where each loop began is remembered."""
        here, inner, middle = (
            Position(
                Signal(self.lane_bits, name=f"{name}_lane{n}"), Signal(self.sizes.address_bits, name=f"{name}_at{n}")
            )
            for n in range(3)
        )
        lane = Mux(level == 2, here.lane, Mux(level == 1, inner.lane, middle.lane))
        address = Mux(level == 2, here.address, Mux(level == 1, inner.address, middle.address))
        strides = [job[f"{name}_stride{loop}"] for loop in range(LOOPS)]
        stride = Mux(level == 2, strides[2], Mux(level == 1, strides[1], strides[0]))
        walk = job[f"{name}_walk"]
        # The step where the lanes wrap is the same in the whole run, so it does not wait for the level.
        wrapping_stride = Signal(self.sizes.address_bits)
        next_lane, next_address = Signal(self.lane_bits), Signal(self.sizes.address_bits)
        walks, wraps = Signal(), Signal()
        m.d.comb += [
            wrapping_stride.eq(
                Mux(walk == 2, strides[2], Mux(walk == 1, strides[1], strides[0])) + job[f"{name}_wrap"]
            ),
            walks.eq(walk == level),
            wraps.eq(walks & (lane == self._lanes(job[f"{name}_memory"]) - 1)),
            next_lane.eq(Mux(wraps, 0, lane + walks)),
            next_address.eq(address + Mux(wraps, wrapping_stride, stride)),
        ]
        with m.If(self.start):
            begin = self.instruction
            for position in (here, inner, middle):
                m.d.sync += [position.lane.eq(begin[f"{name}_lane"]), position.address.eq(begin[f"{name}_address"])]
        with m.Elif(running):
            m.d.sync += [here.lane.eq(next_lane), here.address.eq(next_address)]
            with m.If(level < 2):
                m.d.sync += [inner.lane.eq(next_lane), inner.address.eq(next_address)]
            with m.If(level < 1):
                m.d.sync += [middle.lane.eq(next_lane), middle.address.eq(next_address)]
        return here

    def _lanes(self, memory: Any) -> Any:
        array = self.sizes.array
        own = Mux(memory[1], array.columns, array.rows)
        return Mux(memory[2], Mux(memory[1], self.remote_lanes[1], self.remote_lanes[0]), own)

    def _later(self, m: Module, *signals: Any) -> tuple[Any, ...]:
        """Return signals behind a pipeline stage, if there are any."""
        return tuple(delayed(m, signal, self.sizes.stages) for signal in signals)

    def _compute(
        self, m: Module, job: Any, position: Position, running: Any, begins: Any, ends: Any, writes: Any
    ) -> None:
        """Compute what is written. With pipeline stages, operands, product, sum, share and result are a stage each."""
        number = self.sizes.single
        began, ended, sums = Signal(), Signal(), Signal(number.sum_bits)
        written = Signal(self.result.shape())
        self._request(m, written, position, job.result_memory, running)
        target = Signal(self.result.shape())
        m.d.sync += [began.eq(begins), ended.eq(ends), target.eq(written)]
        holds_sums = job.first_memory[0]
        # With stages there is a register directly behind the banks, whose words come late in the cycle.
        first_sum, first_value, second, began = self._later(
            m, self.first_sum, self.first_value, self.second_value, began
        )
        first = Mux(holds_sums, first_sum, gates.promote(m, number, first_value))
        addend, total, value = (Signal(number.sum_bits) for _ in range(3))
        product = gates.multiply(m, number, job.factor, second)
        product, first, second, began = self._later(m, product, first, second, began)
        start = Mux(job.start == int(Start.FIRST), first, Mux((job.start == int(Start.RUNNING)) & ~began, sums, 0))
        m.d.comb += [
            addend.eq(start),
            # Times zero is a plain copy, also of infinities and signed zeros.
            total.eq(Mux(job.factor.any(), gates.add_product(m, number, addend, product), addend)),
        ]
        m.d.sync += sums.eq(total)
        summed, second = self._later(m, total, second)
        hidden = job.gate & ~gates.positive(number, second)
        scaled = summed
        if self.sizes.pool_words:
            scaled = Mux(job.share.any(), gates.scale(m, number, summed, job.share, job.shift), summed)
        scaled, summed, hidden = self._later(m, scaled, summed, hidden)
        m.d.comb += value.eq(Mux(hidden, 0, Mux(job.relu, gates.relu(number, summed), scaled)))
        target, ended = (delayed(m, signal, UNIT_STAGES * self.sizes.stages) for signal in (target, ended))
        m.d.comb += [
            self.result.eq(target),
            self.result.valid.eq(writes & ((job.start != int(Start.RUNNING)) | ended)),
            self.result_value.eq(gates.convert(m, number, value)),
        ]


def is_remote(memory: Any) -> Any:
    """Return whether a request is for the remote port."""
    return memory[REMOTE.bit_length() - 1]


def is_here(memory: Any, which: Store) -> Any:
    """Return whether a request is for that memory of this core."""
    return memory == int(which)
