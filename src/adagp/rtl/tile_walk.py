"""The walk over the tiles of a product: three nested loops in any order, extents of tiles at the edges, offsets of matrices."""

from typing import Any

from amaranth.hdl import Array as Choice
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from adagp.rtl.block import Block
from adagp.rtl.instructions import SIZE_BITS

ADDRESS_BITS = 32
"""Of external memory, counted in values."""
INDICES = ("down", "across", "stream")
LAYOUTS = {"row": ("down", "stream"), "column": ("across", "stream"), "stationary": ("across", "down")}
"""The indices of a matrix's lines, which lie over the lanes, and of the words of a line."""


class TileWalk(Block):
    """Stands at a tile: `begin` goes to the first one, `advance` to the next, until it is `final`.

    A matrix lies in memory word by word, the lines of a word next to each other; so from a tile to the next along its lines is
    the tile's size, and along its words a `hop`: the size times the distance of two words. `changed` are the indices that
    `advance` would change.
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
