"""Buffer trees: no net of a block drives more than a few loads, whether these are gates or blocks inside it.

Yosys's abc buffers nets between the gates of one block. What it does not see is how much the blocks inside a block load its
nets: a row's mode goes to every PE of the row, and in each of them to many gates.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adagp.rtl.liberty import LibraryCell

LOADS = 16
"""What a net may drive, in inputs of a buffer."""
PortLoads = Mapping[str, list[float]]
"""Loads of a block's inputs, bit by bit, in the library's unit of capacitance."""


@dataclass(frozen=True)
class _Sink:
    """A bit of an instance's pin that a net drives."""

    bits: list[Any]
    place: int
    load: float


def best_buffer(cells: Mapping[str, LibraryCell]) -> LibraryCell | None:
    """Return the buffer that drives most for its area, if the library has any."""
    buffers = [one for one in cells.values() if one.is_buffer and one.area and one.drives]
    return max(buffers, key=lambda one: one.drives / one.area, default=None)


def with_buffers(
    module: Mapping[str, Any], cells: Mapping[str, LibraryCell], inside: Mapping[str, PortLoads]
) -> dict[str, Any]:
    """Return a block of Yosys's JSON with buffer trees on nets of many loads. `inside` has the loads of the blocks in it."""
    found: dict[str, Any] = copy.deepcopy(dict(module))
    buffer = best_buffer(cells)
    if buffer is not None:
        tree = _Trees(found, buffer)
        for net, sinks in _sinks(found, cells, inside).items():
            tree.grow(net, sinks)
    return found


def port_loads(
    module: Mapping[str, Any], cells: Mapping[str, LibraryCell], inside: Mapping[str, PortLoads]
) -> dict[str, list[float]]:
    """Return what a block's inputs load the nets outside."""
    loads = {net: sum(one.load for one in sinks) for net, sinks in _sinks(module, cells, inside).items()}
    return {
        name: [loads.get(bit, 0.0) for bit in port["bits"]]
        for name, port in module["ports"].items()
        if port["direction"] == "input"
    }


def _sinks(
    module: Mapping[str, Any], cells: Mapping[str, LibraryCell], inside: Mapping[str, PortLoads]
) -> dict[int, list[_Sink]]:
    """Return what each net drives, but for clocks, whose tree is left out."""
    sinks: dict[int, list[_Sink]] = {}
    for instance in module["cells"].values():
        kind = instance["type"].removeprefix("\\")
        for pin, bits in instance["connections"].items():
            loads = [cells[kind].loads.get(pin)] if kind in cells else inside.get(kind, {}).get(pin, [])
            for place, (bit, load) in enumerate(zip(bits, loads, strict=False)):
                if isinstance(bit, int) and load:
                    sinks.setdefault(bit, []).append(_Sink(bits, place, load))
    return sinks


class _Trees:
    """Adds buffers to a module."""

    def __init__(self, module: dict[str, Any], buffer: LibraryCell) -> None:
        self.cells, self.buffer = module["cells"], buffer
        (self.input,), (self.output,) = buffer.inputs, buffer.functions
        self.load = buffer.loads[self.input]
        nets = [bit for cell in self.cells.values() for bits in cell["connections"].values() for bit in bits]
        nets += [bit for port in module["ports"].values() for bit in port["bits"]]
        self.free = 1 + max((net for net in nets if isinstance(net, int)), default=0)

    def grow(self, net: int, sinks: list[_Sink]) -> None:
        """Put buffers between a net and what it drives, level by level, until it drives little enough."""
        while sum(one.load for one in sinks) > LOADS * self.load and len(sinks) > 1:
            sinks = [self._drive(net, group) for group in self._groups(sinks)]

    def _groups(self, sinks: list[_Sink]) -> list[list[_Sink]]:
        groups: list[list[_Sink]] = [[]]
        for sink in sinks:
            if groups[-1] and sum(one.load for one in groups[-1]) + sink.load > LOADS * self.load:
                groups.append([])
            groups[-1].append(sink)
        return groups

    def _drive(self, net: int, group: list[_Sink]) -> _Sink:
        """Drive a group by a new buffer; return the buffer's own input."""
        for sink in group:
            sink.bits[sink.place] = self.free
        bits: list[Any] = [net]
        connections = {self.input: bits, self.output: [self.free]}
        self.cells[f"buffer_{self.free}"] = {"type": self.buffer.name, "connections": connections}
        self.free += 1
        return _Sink(bits, 0, self.load)
