"""The sequencer: folds of a product onto the array, as commands for lane 0; addresses by additions alone."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.instructions import SCALE_BITS, SIZE_BITS, Look, Mode
from adagp.rtl.lane import pool_command, read_command, write_command


@dataclass(frozen=True)
class Parts:
    """Passes over two groups: the chunks of what streams, those of what it is multiplied by, and whether it is the last."""

    outer: Signal
    inner: Signal
    final: Signal


class Sequencer(Block):
    """Runs one product: for each fold it loads (R cycles, where something is loaded), streams, and waits R + C - 2 cycles;
    behind the last fold a cycle for each pipeline stage of a PE. The mode STATIONARY loads only sums to which it adds.

    `busy` is high during these, the cycles of the array; the last results reach their banks a few cycles later, when `done` is
    given. A sum that is complete in parts only is read again with the next fold that adds to it. A convolution is a product
    for each tap of its kernel that takes neighbours of pixels: by another address to begin with, and no reading outside.
    """

    def __init__(self, sizes: CoreSizes) -> None:
        self.sizes = sizes
        self.kind = f"{sizes.prefix}sequencer"
        layout = sizes.encoding.layout(sizes.encoding.array)
        super().__init__(
            {
                "start": In(1),
                "instruction": In(layout),
                "mode": Out(2),
                "clear": Out(1),
                **({"wide": Out(1), "scale": Out(SCALE_BITS)} if sizes.groups is not None else {}),
                "busy": Out(1),
                "done": Out(1),
                "row_read": Out(read_command(sizes)),
                "column_read": Out(read_command(sizes)),
                "row_write": Out(write_command(sizes)),
                "column_write": Out(write_command(sizes)),
                **({"pool": Out(pool_command(sizes))} if sizes.pool_words else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the state machine."""
        m = Module()
        rows, columns = self.sizes.array.rows, self.sizes.array.columns
        address, stages = self.sizes.address_bits, self.sizes.stages
        registers = 2 * stages  # behind the banks and behind the multipliers
        job = Signal(self.instruction.shape())
        count = Signal(SIZE_BITS)
        rows_left, columns_left = Signal(SIZE_BITS), Signal(SIZE_BITS)
        row, column, stationary, stationary_start = (Signal(address) for _ in range(4))
        first_down, first_across = Signal(), Signal()
        pixel, line = Signal(SIZE_BITS), Signal(SIZE_BITS)
        loads, stays = Signal(), Signal()
        m.d.comb += [self.mode.eq(job.mode), stays.eq(job.mode == int(Mode.STATIONARY)), loads.eq(~stays | job.adds)]
        row_count, column_count = Signal(self.sizes.lane_bits), Signal(self.sizes.lane_bits)
        m.d.comb += [
            row_count.eq(Mux(rows_left < rows, rows_left, rows)),
            column_count.eq(Mux(columns_left < columns, columns_left, columns)),
        ]
        last = Signal()
        m.d.comb += last.eq(count == job.stream - 1)
        parts = self._parts(m, job) if self.sizes.groups is not None else None
        if parts is not None:
            m.d.comb += [last.eq((count == job.stream - 1) & parts.final), self.wide.eq(job.wide_stationary)]
            m.d.comb += self.scale.eq(job.scale)
        m.d.comb += [self.row_read.count.eq(row_count), self.column_read.count.eq(column_count)]
        early_row, early_column = (Signal(write_command(self.sizes)) for _ in range(2))

        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += job.eq(self.instruction)
                m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += self.clear.eq(1)
                m.d.sync += [
                    rows_left.eq(job.down),
                    columns_left.eq(job.across),
                    row.eq(job.row),
                    column.eq(job.column),
                    stationary.eq(job.stationary),
                    stationary_start.eq(job.stationary),
                    first_down.eq(~job.adds),
                    first_across.eq(~job.adds),
                    count.eq(0),
                    pixel.eq(0),
                    line.eq(0),
                ]
                with m.If(loads):
                    m.next = "LOAD"
                with m.Else():
                    m.next = "STREAM"
            with m.State("LOAD"):
                m.d.comb += [
                    self.busy.eq(1),
                    self.column_read.tag.eq(1),
                    self.column_read.sums.eq(stays),
                    self.column_read.valid.eq(count < self._words(job, "stationary", rows_left)),
                    self.column_read.address.eq(stationary + count),
                ]
                m.d.sync += count.eq(count + 1)
                with m.If(count == self._words(job, "stationary", rows) - 1):
                    m.d.sync += count.eq(0)
                    m.next = "STREAM"
            with m.State("STREAM"):
                inside = self._inside(m, job, pixel, line)
                self._stream(m, job, row + count, column + count, first_down, first_across, last, inside)
                m.d.comb += [
                    early_row.valid.eq(job.mode == int(Mode.DOWN)),
                    early_row.address.eq(row + count),
                    early_row.count.eq(row_count),
                ]
                m.d.sync += count.eq(count + 1)
                if parts is not None:
                    self._pass(m, job, parts, row, column, count)
                    m.d.comb += early_row.valid.eq((job.mode == int(Mode.DOWN)) & parts.final)
                with m.If(last):
                    m.d.sync += count.eq(0)
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += self.busy.eq(1)
                m.d.sync += count.eq(count + 1)
                with m.If(count == rows + columns - 3):
                    m.d.sync += count.eq(0)
                    self._next_fold(
                        m,
                        job,
                        (rows_left, columns_left),
                        (row, column, stationary, stationary_start),
                        (first_down, first_across),
                        loads,
                    )
            with m.State("FLUSH"):
                m.d.sync += count.eq(count + 1)
                if stages:
                    m.d.comb += self.busy.eq(count < stages)
                with m.If(count == 2 * rows + 2 * columns + 4 + registers):
                    m.d.comb += self.done.eq(1)
                    m.next = "IDLE"

        final = Signal()
        m.d.comb += final.eq(rows_left <= rows)
        drain, drained = self._drain(m, last & self.row_read.step & stays, stationary, rows_left, column_count)
        streaming = Signal()
        m.d.comb += streaming.eq(self.row_read.step & (job.mode == int(Mode.ACROSS)))
        if parts is not None:
            m.d.comb += streaming.eq(self.row_read.step & (job.mode == int(Mode.ACROSS)) & parts.final)
        m.d.comb += [
            early_column.valid.eq(streaming | drain.valid),
            early_column.address.eq(Mux(streaming, column + count, drain.address)),
            early_column.count.eq(Mux(streaming, column_count, drain.count)),
        ]
        if self.sizes.pool_words:
            early_pool = Signal(pool_command(self.sizes))
            whole = (streaming & final) | drain.valid
            m.d.comb += early_pool.valid.eq(job.pool & whole)
            self._pool(m, job, early_pool, Mux(streaming, last, drained))
            self._delay(m, early_pool, self.pool, rows + 1 + registers)
        self._delay(m, early_row, self.row_write, columns + 1 + registers)
        self._delay(m, early_column, self.column_write, rows + 1 + registers)
        return m

    def _stream(
        self, m: Module, job: Any, row: Any, column: Any, first_down: Any, first_across: Any, last: Any, inside: Any
    ) -> None:
        down, across = job.mode == int(Mode.DOWN), job.mode == int(Mode.ACROSS)
        m.d.comb += [
            self.busy.eq(1),
            self.row_read.step.eq(1),
            self.row_read.last.eq(last),
            self.row_read.sums.eq(down),
            self.row_read.valid.eq(Mux(down, ~first_across, inside)),
            self.row_read.address.eq(row),
            self.column_read.sums.eq(across),
            self.column_read.valid.eq(Mux(across, ~first_down, ~down | inside)),
            self.column_read.address.eq(column),
        ]

    def _words(self, job: Any, role: str, count: Any) -> Any:
        """Return the words of `count` values of a matrix: two of each for wide groups."""
        return count if self.sizes.groups is None else Mux(job[f"wide_{role}"], 2 * count, count)

    def _parts(self, m: Module, job: Any) -> Parts:
        """Return the current pass over two groups: the chunk of the streaming group and the chunk it is multiplied by."""
        outer, inner, final = Signal(), Signal(), Signal()
        wide_outer = Mux(job.mode == int(Mode.DOWN), job.wide_column, job.wide_row)
        wide_inner = Mux(job.mode == int(Mode.STATIONARY), job.wide_column, job.wide_stationary)
        m.d.comb += final.eq((outer == wide_outer) & (inner == wide_inner))
        with m.If(self.row_read.step):
            m.d.sync += inner.eq(wide_inner & ~inner)
            with m.If(inner == wide_inner):
                m.d.sync += outer.eq(wide_outer & ~outer)
        return Parts(outer, inner, final)

    def _pass(self, m: Module, job: Any, parts: Parts, row: Any, column: Any, count: Any) -> None:
        """Repeat the streaming words in all passes of each pair of groups; sums are read and written in the last pass."""
        down, across = job.mode == int(Mode.DOWN), job.mode == int(Mode.ACROSS)
        row_part, column_part = parts.outer & ~down, Mux(down, parts.outer, parts.inner & ~across)
        part = self.row_read.part
        m.d.comb += [
            self.row_read.address.eq(row + self._words(job, "row", count) + row_part),
            self.column_read.address.eq(column + self._words(job, "column", count) + column_part),
            part.first.eq(~parts.outer & ~parts.inner),
            part.final.eq(parts.final),
            part.other.eq(parts.inner),
            part.place.eq(parts.outer + parts.inner),
        ]
        m.d.sync += count.eq(count + parts.final)
        with m.If(down & ~parts.final):
            m.d.comb += self.row_read.valid.eq(0)
        with m.If(across & ~parts.final):
            m.d.comb += self.column_read.valid.eq(0)

    def _inside(self, m: Module, job: Any, pixel: Any, line: Any) -> Any:
        """Return whether the neighbour that a convolution takes of this pixel is in the image. Pixels stream line by line."""
        inside = Signal()
        m.d.sync += pixel.eq(pixel + 1)
        with m.If(pixel == job.pixels - 1):
            m.d.sync += [pixel.eq(0), line.eq(Mux(line == job.lines - 1, 0, line + 1))]
        outside = [
            ((look == int(Look.BEFORE)) & (here == 0)) | ((look == int(Look.BEHIND)) & (here == side - 1))
            for look, here, side in ((job.look_across, pixel, job.pixels), (job.look_down, line, job.lines))
        ]
        m.d.comb += inside.eq(~(outside[0] | outside[1]))
        return inside

    def _next_fold(self, m: Module, job: Any, left: Any, addresses: Any, first: Any, loads: Any) -> None:
        rows, columns = self.sizes.array.rows, self.sizes.array.columns
        rows_left, columns_left = left
        row, column, stationary, stationary_start = addresses
        first_down, first_across = first
        begin = Signal()
        with m.If(rows_left > rows):
            m.d.comb += begin.eq(1)
            m.d.sync += [
                rows_left.eq(rows_left - rows),
                row.eq(row + self._words(job, "row", job.stream)),
                stationary.eq(stationary + self._words(job, "stationary", rows)),
                first_down.eq(0),
            ]
        with m.Elif(columns_left > columns):
            m.d.comb += begin.eq(1)
            m.d.sync += [
                columns_left.eq(columns_left - columns),
                rows_left.eq(job.down),
                row.eq(job.row),
                column.eq(column + self._words(job, "column", job.stream)),
                stationary.eq(stationary_start + self._words(job, "stationary", job.down)),
                stationary_start.eq(stationary_start + self._words(job, "stationary", job.down)),
                first_down.eq(~job.adds),
                first_across.eq(0),
            ]
        with m.If(~begin):
            m.next = "FLUSH"
        with m.Elif(loads):
            m.next = "LOAD"
        with m.Else():
            m.next = "STREAM"

    def _pool(self, m: Module, job: Any, command: Any, ends: Any) -> None:
        """Compute the cell that each output belongs to. Outputs of a lane come sample by sample, row by row of their picture.

        With `ends` the lanes' last output is there: the next comes of other channels, and has cells of its own.
        """
        cells = command.cell.shape()
        x, across, y, down = (Signal(SIZE_BITS, name=f"pool_{name}") for name in ("x", "across", "y", "down"))
        fresh, row, base = Signal(init=1), Signal(cells), Signal(cells)
        m.d.comb += [command.cell.eq(base + row + across), command.fresh.eq(fresh & (x == 0) & (y == 0))]
        with m.If(self.start):
            m.d.sync += [fresh.eq(1), base.eq(self.instruction.pool_base), row.eq(0)]
            m.d.sync += [counter.eq(0) for counter in (x, across, y, down)]
        with m.Elif(command.valid):
            m.d.sync += x.eq(x + 1)
            with m.If(x == job.width - 1):
                m.d.sync += [x.eq(0), across.eq(across + 1)]
                with m.If(across == job.cells_across - 1):
                    m.d.sync += [across.eq(0), y.eq(y + 1)]
                    with m.If(y == job.height - 1):
                        m.d.sync += [y.eq(0), row.eq(row + job.cells_across), down.eq(down + 1)]
                        with m.If(down == job.cells_down - 1):
                            m.d.sync += [row.eq(0), down.eq(0), fresh.eq(0)]
                            with m.If(ends):
                                m.d.sync += [fresh.eq(1), base.eq(base + row + job.cells_across)]

    def _drain(self, m: Module, begin: Any, start: Any, rows_left: Any, column_count: Any) -> tuple[Any, Any]:
        """Return the write commands for the sums that leave down the columns after a fold, row after row, and whether it is
        the last row of all folds down the array."""
        rows = self.sizes.array.rows
        command = Signal(write_command(self.sizes))
        address, count = Signal(self.sizes.address_bits), Signal(self.sizes.lane_bits)
        left, final = Signal(range(rows + 1)), Signal()
        with m.If(begin):
            m.d.sync += [address.eq(start), count.eq(column_count), left.eq(Mux(rows_left < rows, rows_left, rows))]
            m.d.sync += final.eq(rows_left <= rows)
        with m.Elif(left > 0):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        m.d.comb += [command.valid.eq(left > 0), command.address.eq(address), command.count.eq(count)]
        return command, final & (left == 1)

    def _delay(self, m: Module, early: Any, late: Any, cycles: int) -> None:
        words = Signal(len(early.as_value()) * cycles)
        m.d.sync += words.eq(Cat(early.as_value(), words))
        m.d.comb += late.as_value().eq(words[-len(early.as_value()) :])
