"""A lane: the banks of one row or one column of the array, and the command that comes from the lane before."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from adagp.rtl import gates
from adagp.rtl.block import Bank, Block, add_submodule, delayed
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.instructions import PASS


def read_command(sizes: CoreSizes) -> data.StructLayout:
    """Return the layout of a read command: lanes below `count` read a value or a sum, if it is `valid`."""
    part = {} if sizes.groups is None else {"part": PASS}
    return data.StructLayout(
        {
            "valid": unsigned(1),
            "sums": unsigned(1),
            "address": unsigned(sizes.address_bits),
            "count": unsigned(sizes.lane_bits),
            "step": unsigned(1),
            "last": unsigned(1),
            "tag": unsigned(1),
            **part,
        }
    )


def write_command(sizes: CoreSizes) -> data.StructLayout:
    """Return the layout of a write command: lanes below `count` write the sum that comes out of the array."""
    return data.StructLayout(
        {"valid": unsigned(1), "address": unsigned(sizes.address_bits), "count": unsigned(sizes.lane_bits)}
    )


def pool_command(sizes: CoreSizes) -> data.StructLayout:
    """Return the layout of what accompanies a write command if outputs are pooled: the output that is written is added to the
    sum of its cell, or is the first in it."""
    return data.StructLayout(
        {"valid": unsigned(1), "fresh": unsigned(1), "cell": unsigned((sizes.pool_words - 1).bit_length())}
    )


class Lane(Block):
    """A bank of values and a bank of sums, with one port to read and one to write each.

    Each lane passes commands to the next one a cycle later, which gives the data the skew of a systolic array. A lane that does
    not read outputs zeros; partial sums are delayed by the PEs' pipeline stages. While the array is idle, the core reads and
    writes the banks (`value_*`, `sum_*`). Addresses behind those of the values belong to the predictor's own bank, if there is
    one. A lane that `pools` adds up outputs, rounded to values, as they leave the array; addresses behind those of the sums
    belong to these totals.
    """

    def __init__(self, sizes: CoreSizes, *, predictor_words: int = 0, pools: bool = False) -> None:
        self.sizes, self.predictor_words, self.pools = sizes, predictor_words, pools
        self.kind = sizes.prefix + "pooling_" * pools + "wide_" * (predictor_words > 0) + "lane"
        value, total, address = sizes.number.value_bits, sizes.number.sum_bits, sizes.address_bits
        read, write = read_command(sizes), write_command(sizes)
        pool = pool_command(sizes) if pools else None
        super().__init__(
            {
                "index": In(sizes.lane_bits),
                "read": In(read),
                "read_out": Out(read),
                "write": In(write),
                "write_out": Out(write),
                **({"pool": In(pool), "pool_out": Out(pool)} if pool is not None else {}),
                "result": In(sizes.number.word_bits),
                "data": Out(sizes.number.word_bits),
                "step": Out(1),
                "last": Out(1),
                "tag": Out(1),
                **({"part": Out(PASS)} if sizes.groups is not None else {}),
                "value_read": In(1),
                "value_address": In(address),
                "value": Out(value),
                "value_write": In(1),
                "value_write_address": In(address),
                "value_in": In(value),
                "sum_read": In(1),
                "sum_address": In(address),
                "total": Out(total),
                "sum_write": In(1),
                "sum_write_address": In(address),
                "sum_in": In(total),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build banks and gates."""
        m = Module()
        sizes = self.sizes
        read, write = self.read, self.write
        m.d.sync += [self.read_out.eq(read), self.write_out.eq(write)]
        active, writes = Signal(), Signal()
        m.d.comb += [
            active.eq(read.valid & (self.index < read.count)),
            writes.eq(write.valid & (self.index < write.count)),
        ]

        add_sums = self._sum_halves if sizes.dma_words else self._sum_bank
        sums = add_sums(m, platform, active & read.sums, writes)

        address = Signal(sizes.address_bits)
        enable = Signal()
        m.d.comb += [
            address.eq(Mux(read.valid, read.address, self.value_address)),
            enable.eq((active & ~read.sums) | self.value_read),
        ]
        value = self._value_bank(m, platform, "values", address, enable, 0, sizes.value_words)
        if self.predictor_words:
            own = self._value_bank(m, platform, "own", address, enable, sizes.value_words, self.predictor_words)
            from_own = Signal()
            with m.If(enable):
                m.d.sync += from_own.eq(address >= sizes.value_words)
            value = Mux(from_own, own, value)
        m.d.comb += self.value.eq(value)

        gives_value, gives_sum, step, last, tag = (Signal() for _ in range(5))
        m.d.sync += [
            gives_value.eq(active & ~read.sums),
            gives_sum.eq(active & read.sums),
            step.eq(read.step),
            last.eq(read.last),
            tag.eq(read.tag),
        ]
        given = Mux(gives_sum, sums, Mux(gives_value, self.value, 0))
        if sizes.stages:  # sums to keep come at once, those that products meet on their way later
            meets, late = (delayed(m, signal, sizes.stages) for signal in (gives_sum & ~tag, sums))
            given = Mux(meets, late, Mux(gives_sum & tag, sums, Mux(gives_value, self.value, 0)))
        # With stages a register behind the bank: a path from a RAM into a multiplier would be the longest.
        outputs = {"data": given, "step": step, "last": last, "tag": tag}
        if sizes.groups is not None:
            part = Signal(PASS)
            m.d.sync += part.eq(read.part)
            outputs["part"] = part
        m.d.comb += [getattr(self, name).eq(delayed(m, signal, sizes.stages)) for name, signal in outputs.items()]
        return m

    def _sum_bank(self, m: Module, platform: Any, reads: Any, writes: Any) -> Any:
        """Place the bank of sums; return its output to the array."""
        sums = Bank(self.sizes.sum_words, self.sizes.number.sum_bits)
        add_submodule(m, platform, "sums", sums)
        pooled = self._pool(m, platform, writes) if self.pools else None
        m.d.comb += [
            sums.address.eq(Mux(self.read.valid, self.read.address, self.sum_address)),
            sums.read.eq(reads | self.sum_read),
            self.total.eq(sums.data if pooled is None else Mux(pooled[0], pooled[1], sums.data)),
            sums.write_address.eq(Mux(self.sum_write, self.sum_write_address, self.write.address)),
            sums.write_data.eq(Mux(self.sum_write, self.sum_in, self.result)),
            sums.write.eq(writes | self.sum_write),
        ]
        return sums.data

    def _sum_halves(self, m: Module, platform: Any, reads: Any, writes: Any) -> Any:
        """Place two banks of sums, one for a DMA while the array uses the other; return their output to the array."""
        words, banks = self.sizes.sum_words // 2, []
        for half, name in enumerate(("sums_low", "sums_high")):
            bank = Bank(words, self.sizes.number.sum_bits)
            add_submodule(m, platform, name, bank)
            here = [
                (address >= words) == half
                for address in (self.read.address, self.sum_address, self.write.address, self.sum_write_address)
            ]
            array_reads, array_writes = reads & here[0], writes & here[2]
            m.d.comb += [
                bank.address.eq(Mux(array_reads, self.read.address, self.sum_address) - half * words),
                bank.read.eq(array_reads | (self.sum_read & here[1])),
                bank.write_address.eq(Mux(array_writes, self.write.address, self.sum_write_address) - half * words),
                bank.write_data.eq(Mux(array_writes, self.result, self.sum_in)),
                bank.write.eq(array_writes | (self.sum_write & here[3])),
            ]
            banks.append(bank)
        array_high, core_high = Signal(), Signal()
        with m.If(reads):
            m.d.sync += array_high.eq(self.read.address >= words)
        with m.If(self.sum_read):
            m.d.sync += core_high.eq(self.sum_address >= words)
        low, high = (bank.data for bank in banks)
        m.d.comb += self.total.eq(Mux(core_high, high, low))
        return Mux(array_high, high, low)

    def _value_bank(
        self, m: Module, platform: Any, name: str, address: Any, enable: Any, start: int, words: int
    ) -> Any:
        """Place a bank that holds the addresses from `start` on; return its data."""
        bank = Bank(words, self.sizes.number.value_bits)
        add_submodule(m, platform, name, bank)
        inside = address >= start if start else address < words
        inside_write = self.value_write_address >= start if start else self.value_write_address < words
        m.d.comb += [
            bank.address.eq(address - start),
            bank.read.eq(enable & inside),
            bank.write_address.eq(self.value_write_address - start),
            bank.write_data.eq(self.value_in),
            bank.write.eq(self.value_write & inside_write),
        ]
        return bank.data

    def _pool(self, m: Module, platform: Any, writes: Any) -> tuple[Any, Any]:
        """Add outputs to the totals of their cells; return whether the core's last request was for a total, and the total.

        A cell's total is read while its output is rounded, and written a cycle later; the output behind it, if of the same
        cell, takes the total on its way to the bank.
        """
        sizes, number, pool = self.sizes, self.sizes.single, self.pool
        bank = Bank(sizes.pool_words, number.sum_bits)
        add_submodule(m, platform, "totals", bank)
        begins, valid, fresh, same = Signal(), Signal(), Signal(), Signal()
        cell, output = Signal(pool.cell.shape()), Signal(number.value_bits)
        requested, requests = Signal(), Signal()
        before, total = Signal(number.sum_bits), Signal(number.sum_bits)
        last = Signal(number.sum_bits)
        m.d.comb += [
            begins.eq(pool.valid & writes),
            requests.eq(self.sum_read & (self.sum_address >= sizes.sum_words)),
            bank.read.eq(begins | requests),
            bank.address.eq(Mux(begins, pool.cell, self.sum_address - sizes.sum_words)),
            before.eq(Mux(fresh, 0, Mux(same, last, bank.data))),
            total.eq(gates.add(m, number, before, output)),
            bank.write.eq(valid),
            bank.write_address.eq(cell),
            bank.write_data.eq(total),
        ]
        m.d.sync += [
            self.pool_out.eq(pool),
            valid.eq(begins),
            cell.eq(pool.cell),
            fresh.eq(pool.fresh),
            same.eq(valid & (pool.cell == cell)),
            output.eq(gates.convert(m, number, self.result)),
            last.eq(total),
        ]
        with m.If(self.sum_read):
            m.d.sync += requested.eq(requests)
        return requested, bank.data
