"""The tiles of a product: the walk over them, three nested loops in any order; and what moves one of them.

The mover works between external memory and the banks, several lanes at a time, and requests words before earlier ones arrive.

A beat has the words of neighbouring lanes at one address of their banks. A sum has as many beats as values fit into it: its
parts lie in planes of memory, which only the DMA reads again.
"""

from typing import Any

from amaranth.hdl import Array as Choice
from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from adagp.rtl import gates
from adagp.rtl.block import Block
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.core import dma_ports
from adagp.rtl.instructions import SIZE_BITS

ADDRESS_BITS = 32
"""Bits of an address in external memory, counted in values."""
INDICES = ("down", "across", "stream")
LAYOUTS = {"row": ("down", "stream"), "column": ("across", "stream"), "stationary": ("across", "down")}
"""The indices of a matrix's lines, which lie over the lanes, and of the words of a line."""


class TileWalk(Block):
    """Points at a tile: `begin` goes to the first one, `advance` to the next, until it is `final`.

    In memory, the same word of all lines is contiguous, and one word follows the other. So the next tile along a matrix's lines
    is the tile's size away, and the next one along its words a `hop`: the tile's size times the distance of two words.
    `changed` are the indices that `advance` would change.
    """

    kind = "tile_walk"

    def __init__(self) -> None:
        sizes = {f"{what}_{index}": In(SIZE_BITS) for what in ("size", "tile") for index in INDICES}
        hops = {f"{role}_hop": In(ADDRESS_BITS) for role in LAYOUTS}
        extents = {f"extent_{index}": Out(SIZE_BITS) for index in INDICES}
        flags = {f"{flag}_{index}": Out(1) for flag in ("first", "last", "changed") for index in INDICES}
        offsets = {f"{role}_offset": Out(ADDRESS_BITS) for role in LAYOUTS}
        loops = {loop: In(2) for loop in ("outer", "middle", "inner")}
        own = {"begin": In(1), "advance": In(1), "final": Out(1)}
        super().__init__(own | loops | sizes | hops | extents | flags | offsets)

    def elaborate(self, platform: Any) -> Module:
        """Build counters and sums of hops."""
        m = Module()
        lasts = [self._of("last", index) for index in INDICES]
        last_of = Choice([*lasts, 1])
        steps = {}
        for code, index in enumerate(INDICES):
            steps[index] = (
                (self.inner == code)
                | ((self.middle == code) & last_of[self.inner])
                | ((self.outer == code) & last_of[self.inner] & last_of[self.middle])
            )
        m.d.comb += self.final.eq(lasts[0] & lasts[1] & lasts[2])
        positions = {index: self._index(m, index, steps[index]) for index in INDICES}
        for role, (line, word) in LAYOUTS.items():
            hop, hops = getattr(self, f"{role}_hop"), Signal(ADDRESS_BITS, name=f"{role}_hops")
            with m.If(self.begin):
                m.d.sync += hops.eq(0)
            with m.Elif(self.advance & steps[word]):
                m.d.sync += hops.eq(Mux(self._of("last", word), 0, hops + hop))
            m.d.comb += getattr(self, f"{role}_offset").eq(hops + positions[line])
        return m

    def _of(self, what: str, index: str) -> Any:
        return getattr(self, f"{what}_{index}")

    def _index(self, m: Module, index: str, steps: Any) -> Signal:
        """Build the counter of an index; return where its tile begins."""
        size, tile, last, first = (self._of(what, index) for what in ("size", "tile", "last", "first"))
        position, left = Signal(SIZE_BITS, name=f"position_{index}"), Signal(SIZE_BITS, name=f"left_{index}")
        m.d.comb += [
            first.eq(position == 0),
            last.eq(left <= tile),
            self._of("extent", index).eq(Mux(last, left, tile)),
            self._of("changed", index).eq(steps & ~(first & last)),
        ]
        with m.If(self.begin | (self.advance & steps & last)):
            m.d.sync += [position.eq(0), left.eq(size)]
        with m.Elif(self.advance & steps):
            m.d.sync += [position.eq(position + tile), left.eq(left - tile)]
        return position


OUTSTANDING = 64
"""The most beats that are requested and not answered yet: a power of two."""


def memory_ports(sizes: CoreSizes) -> dict[str, Any]:
    """Return the port to external memory, as the DMA sees it: requests with ready and valid, and answers in their order."""
    beat = sizes.dma_words * sizes.number.value_bits
    return {
        "memory_valid": Out(1),
        "memory_ready": In(1),
        "memory_write": Out(1),
        "memory_address": Out(ADDRESS_BITS),
        "memory_words": Out(sizes.dma_words.bit_length()),
        "memory_out": Out(beat),
        "memory_in_valid": In(1),
        "memory_in": In(beat),
    }


def slices(sizes: CoreSizes) -> int:
    """Return how many values are as wide as a sum."""
    return -(-sizes.number.sum_bits // sizes.number.value_bits)


class TileMover(Block):
    """Moves `words` x `lines` from `external` on, two words `pitch` apart, to the banks from `bank` on, or back (`store`).

    `sums` are moved in parts, `plane` apart; if they are not, what is stored is rounded to values. `busy` is high until all
    requests are out, `waiting` until all answers are in the banks.
    """

    kind = "tile_mover"

    def __init__(self, sizes: CoreSizes) -> None:
        self.sizes = sizes
        super().__init__(
            {
                "start": In(1),
                "store": In(1),
                "sums": In(1),
                "memory": In(2),
                "lines": In(SIZE_BITS),
                "words": In(SIZE_BITS),
                "bank": In(sizes.address_bits),
                "external": In(ADDRESS_BITS),
                "pitch": In(ADDRESS_BITS),
                "plane": In(ADDRESS_BITS),
                "busy": Out(1),
                "waiting": Out(1),
                **memory_ports(sizes),
                **{name: member.flip() for name, member in dma_ports(sizes).items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build requests, answers, and the walk over lanes and words."""
        m = Module()
        self.job = Signal(
            data.StructLayout(
                {"store": unsigned(1), "sums": unsigned(1), "memory": unsigned(2)}
                | {"lines": unsigned(SIZE_BITS), "words": unsigned(SIZE_BITS)}
                | {"pitch": unsigned(ADDRESS_BITS), "plane": unsigned(ADDRESS_BITS)}
            )
        )
        with m.If(self.start):
            m.d.sync += [getattr(self.job, name).eq(getattr(self, name)) for name, _ in self.job.shape()]
        asks, steps = Signal(), Signal()
        place, external, final = self._walk(m, asks & steps)
        with m.If(self.start):
            m.d.sync += asks.eq(1)
        with m.Elif(steps & final):
            m.d.sync += asks.eq(0)
        room = self._answers(m, place)
        self._requests(m, asks, steps, place, external, room)
        return m

    def _walk(self, m: Module, steps: Any) -> tuple[Any, Signal, Signal]:
        """Go from beat to beat: over the lines of a word, then to the next word. Return its place in the banks and outside."""
        job, beat, array = self.job, self.sizes.dma_words, self.sizes.array
        place = Signal(self.dma_write.shape())
        lines_left, words_left = Signal(SIZE_BITS), Signal(SIZE_BITS)
        bank, first_bank = Signal(self.bank.shape()), Signal(self.bank.shape())
        external, first_external = Signal(ADDRESS_BITS), Signal(ADDRESS_BITS)
        lane, lanes = Signal(self.sizes.lane_bits), Signal(self.sizes.lane_bits)
        word_ends, final = Signal(), Signal()
        m.d.comb += [
            lanes.eq(Mux(job.memory[1], array.columns, array.rows)),
            word_ends.eq(lines_left <= beat),
            final.eq(word_ends & (words_left == 1)),
            place.memory.eq(job.memory),
            place.lane.eq(lane),
            place.address.eq(bank),
            place.count.eq(Mux(word_ends, lines_left, beat)),
        ]
        with m.If(self.start):
            m.d.sync += [lines_left.eq(self.lines), words_left.eq(self.words), lane.eq(0)]
            m.d.sync += [address.eq(self.bank) for address in (bank, first_bank)]
            m.d.sync += [address.eq(self.external) for address in (external, first_external)]
        with m.Elif(steps & word_ends):
            m.d.sync += [lines_left.eq(job.lines), words_left.eq(words_left - 1), lane.eq(0)]
            m.d.sync += [address.eq(first_bank + 1) for address in (bank, first_bank)]
            m.d.sync += [address.eq(first_external + job.pitch) for address in (external, first_external)]
        with m.Elif(steps):
            m.d.sync += [lines_left.eq(lines_left - beat), lane.eq(lane + beat), external.eq(external + beat)]
            with m.If(lane + beat == lanes):
                m.d.sync += [lane.eq(0), bank.eq(bank + job.words)]
        return place, external, final

    def _requests(self, m: Module, asks: Any, steps: Any, place: Any, external: Any, room: Any) -> None:
        """Request beats, or send them. The banks' words stay until the next are read, once their last part is sent."""
        job, number = self.job, self.sizes.single
        last, part = slices(self.sizes) - 1, Signal(range(max(2, slices(self.sizes))))
        offset, taken, whole = Signal(ADDRESS_BITS), Signal(), Signal()
        there, count, address = Signal(), Signal(self.memory_words.shape()), Signal(ADDRESS_BITS)
        m.d.comb += [
            self.memory_valid.eq(there | (asks & ~job.store & room)),
            self.memory_write.eq(there),
            self.memory_address.eq(Mux(there, address, external) + offset),
            self.memory_words.eq(Mux(there, count, place.count)),
            taken.eq(self.memory_valid & self.memory_ready),
            whole.eq(taken & (~job.sums | (part == last))),
            self.dma_read.valid.eq(asks & job.store & (~there | whole)),
            self.dma_read.memory.eq(place.memory),
            self.dma_read.lane.eq(place.lane),
            self.dma_read.address.eq(place.address),
            steps.eq(Mux(job.store, self.dma_read.valid, whole)),
            self.busy.eq(asks | there),
        ]
        with m.If(taken):
            m.d.sync += [part.eq(Mux(whole, 0, part + 1)), offset.eq(Mux(whole, 0, offset + job.plane))]
        with m.If(self.dma_read.valid):
            m.d.sync += [there.eq(1), count.eq(place.count), address.eq(external)]
        with m.Elif(whole):
            m.d.sync += there.eq(0)
        bits = number.value_bits
        for index in range(self.sizes.dma_words):
            total = Signal(number.sum_bits, name=f"total_{index}")
            m.d.comb += total.eq(self.dma_out.word_select(index, number.word_bits))
            rounded = gates.convert(m, number, total)
            parts = Choice([total[first : first + bits] for first in range(0, number.sum_bits, bits)])
            sent = Mux(job.sums, parts[part], rounded)
            m.d.comb += self.memory_out.word_select(index, bits).eq(sent)

    def _answers(self, m: Module, place: Any) -> Signal:
        """Remember where answers go, and write them there; return whether there is room for another."""
        sizes, words, bits = self.sizes, self.sizes.dma_words, self.sizes.number.value_bits
        m.submodules.places = places = Memory(shape=unsigned(len(place.as_value())), depth=OUTSTANDING, init=[])
        reader, writer = places.read_port(domain="comb"), places.write_port()
        asked, answered = Signal(range(OUTSTANDING)), Signal(range(OUTSTANDING))
        under_way, requests, room = Signal(range(OUTSTANDING + 1)), Signal(), Signal()
        m.d.comb += [
            room.eq(under_way != OUTSTANDING),
            self.waiting.eq(under_way != 0),
            requests.eq(self.memory_valid & self.memory_ready & ~self.memory_write),
            writer.en.eq(requests),
            writer.addr.eq(asked),
            writer.data.eq(place.as_value()),
            reader.addr.eq(answered),
        ]
        m.d.sync += [
            asked.eq(asked + requests),
            answered.eq(answered + self.memory_in_valid),
            under_way.eq(under_way + requests - self.memory_in_valid),
        ]
        parts, whole = slices(sizes), Signal()
        earlier = Signal(words * bits * max(1, parts - 1))
        m.d.comb += [
            self.dma_write.as_value().eq(reader.data),
            self.dma_write.valid.eq(self.memory_in_valid & whole),
        ]
        m.d.comb += whole.eq(1)
        if parts > 1:
            part, is_sum = Signal(range(parts)), self.dma_write.memory[0]
            m.d.comb += whole.eq(~is_sum | (part == parts - 1))
            with m.If(self.memory_in_valid):
                m.d.sync += [earlier.eq(Cat(earlier, self.memory_in)[words * bits :])]
                m.d.sync += part.eq(Mux(whole, 0, part + 1))
        for index in range(words):
            answer = self.memory_in.word_select(index, bits)
            word: Any = answer
            if parts > 1:
                before = [earlier.word_select(plane * words + index, bits) for plane in range(parts - 1)]
                word = Mux(is_sum, Cat(*before, answer), answer)
            m.d.comb += self.dma_in.word_select(index, sizes.number.word_bits).eq(word)
        return room
