"""A block as gates of a Liberty file: simulated from recorded inputs to count the changes of its nets, and its buffer trees."""

import copy
import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import ToolError
from adagp.rtl.liberty import LibraryCell, support, truth_table
from adagp.rtl.tools import cached_folder, digest, run

Net = int | str
"""A net as Yosys numbers it, or "0", "1", "x"."""
Pin = tuple[str, str]
"""An instance and its pin; a port of the block itself has the instance ''."""


@dataclass(frozen=True)
class _Gate:
    sources: tuple[int, ...]
    table: int
    output: int


class GateNetlist:
    """Gates and registers of a block, from Yosys's JSON. The outputs of inner blocks are inputs of the simulation."""

    def __init__(self, module: Mapping[str, Any], cells: Mapping[str, LibraryCell]) -> None:
        self._numbers: dict[Net, int] = {"0": 0, "1": 1, "x": 0}
        self._count = 2
        self.pins: dict[Pin, int] = {}
        """Nets of the pins of all gates."""
        self.inside: dict[str, dict[str, list[int]]] = {}
        """Nets of the ports of the blocks inside, by instance and port."""
        self.ports = {name: self._nets(port["bits"]) for name, port in module["ports"].items()}
        self._gates: list[_Gate] = []
        self._registers: list[tuple[int, int]] = []
        for name, instance in module["cells"].items():
            kind = instance["type"].removeprefix("\\")
            nets = {pin: self._nets(bits) for pin, bits in instance["connections"].items()}
            if kind in cells:
                self._add(plain(name), cells[kind], {pin: bits[0] for pin, bits in nets.items()})
            elif kind.startswith("$"):
                raise ToolError(f"the library has no cell for '{kind}'.")
            else:
                self.inside[name] = nets
        self._sort()

    def _nets(self, bits: Iterable[Net]) -> list[int]:
        return [self._net(bit) for bit in bits]

    def _net(self, bit: Net) -> int:
        if bit not in self._numbers:
            self._numbers[bit] = self._new()
        return self._numbers[bit]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _add(self, name: str, cell: LibraryCell, nets: dict[str, int]) -> None:
        self.pins |= {(name, pin): net for pin, net in nets.items()}
        inner = dict(nets)
        if cell.state:
            inner[cell.state], next_state = self._new(), self._new()
            self._gate(cell.next_state, inner, next_state)
            self._registers.append((next_state, inner[cell.state]))
        for pin, function in cell.functions.items():
            if pin in nets:
                self._gate(function, inner, nets[pin])

    def _gate(self, function: str, nets: Mapping[str, int], output: int) -> None:
        names = support(function)
        if len(names) > 6:
            raise ToolError(f"a cell function of {len(names)} inputs, '{function}', is not supported; at most 6 are.")
        self._gates.append(_Gate(tuple(nets[name] for name in names), truth_table(function, names), output))

    def _sort(self) -> None:
        maker = {gate.output: index for index, gate in enumerate(self._gates)}
        needs = {index: [maker[net] for net in gate.sources if net in maker] for index, gate in enumerate(self._gates)}
        self._gates = [self._gates[index] for index in TopologicalSorter(needs).static_order()]

    @property
    def read_by_gates(self) -> set[int]:
        """Nets that some gate has as an input."""
        return {net for gate in self._gates for net in gate.sources}

    def simulate(
        self, driven: Mapping[int, NDArray[np.uint8]], seen: Mapping[int, NDArray[np.uint8]], counted: NDArray[np.uint8]
    ) -> tuple[NDArray[np.int64], int]:
        """Return the changes of each net in the cycles that are counted, and how many of these had nets `seen` otherwise.

        `driven` and `seen` are nets' bits in each cycle. Registers begin at 0.
        """
        library = ctypes.CDLL(str(_library()))
        library.simulate.restype = ctypes.c_int64
        gates = self._gates
        lengths = np.array([len(gate.sources) for gate in gates], np.int32)
        first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        sources = np.array([net for gate in gates for net in gate.sources], np.int32)
        tables = np.array([gate.table for gate in gates], np.uint64)
        outputs = np.array([gate.output for gate in gates], np.int32)
        registers = np.array(self._registers, np.int32).reshape(-1, 2).T.copy()
        nets, toggles = np.zeros(self._count, np.uint8), np.zeros(self._count, np.int64)
        nets[1] = 1
        driven_nets, driven_bits = _columns(driven, len(counted))
        seen_nets, seen_bits = _columns(seen, len(counted))
        arguments: list[Any] = [len(nets), len(gates), first, sources, tables, outputs]
        arguments += [registers.shape[1], registers[0].copy(), registers[1].copy()]
        arguments += [len(driven_nets), driven_nets, driven_bits, len(seen_nets), seen_nets, seen_bits]
        arguments += [len(counted), counted, nets, toggles]
        wrong = library.simulate(
            *(
                ctypes.c_int64(argument) if isinstance(argument, int) else ctypes.c_void_p(argument.ctypes.data)
                for argument in arguments
            )
        )
        return toggles, int(wrong)


def _columns(nets: Mapping[int, NDArray[np.uint8]], cycles: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    bits = np.stack(list(nets.values()), axis=1) if nets else np.zeros((cycles, 0), np.uint8)
    return np.array(list(nets), np.int32), np.ascontiguousarray(bits)


def plain(name: str) -> str:
    """Return an instance's name without characters that tools disagree about."""
    return re.sub(r"\W", "_", name)


def structural_verilog(kind: str, module: Mapping[str, Any]) -> str:
    """Return a block of Yosys's JSON in the plainest Verilog, which OpenSTA reads as well: instances of cells and blocks."""
    names: dict[Net, str] = {"0": "1'b0", "1": "1'b1", "x": "1'b0"}
    lines, assigned = [f"module {kind} ({', '.join(module['ports'])});"], []
    for name, port in module["ports"].items():
        bits = port["bits"]
        lines.append(f"  {port['direction']} {f'[{len(bits) - 1}:0] ' if len(bits) > 1 else ''}{name};")
        if port["direction"] == "input":
            names |= {bit: here for here, bit in _port_bits(name, bits)}
        else:
            assigned += _port_bits(name, bits)
    for bit in _cell_bits(module):
        if bit not in names:
            names[bit] = f"n{bit}"
            lines.append(f"  wire n{bit};")
    lines += [_instance(name, cell, names) for name, cell in module["cells"].items()]
    lines += [f"  assign {here} = {names[bit]};" for here, bit in assigned if bit in names]
    return "\n".join([*lines, "endmodule", ""])


def _port_bits(name: str, bits: Sequence[Net]) -> list[tuple[str, Net]]:
    return [(f"{name}[{index}]" if len(bits) > 1 else name, bit) for index, bit in enumerate(bits)]


def _cell_bits(module: Mapping[str, Any]) -> list[Net]:
    return [bit for cell in module["cells"].values() for bits in cell["connections"].values() for bit in bits]


def _instance(name: str, cell: Mapping[str, Any], names: Mapping[Net, str]) -> str:
    pins = []
    for pin, bits in cell["connections"].items():
        nets = [names[bit] for bit in reversed(bits)]
        pins.append(f".{pin}({nets[0] if len(nets) == 1 else '{' + ', '.join(nets) + '}'})")
    return f"  {cell['type']} {plain(name)} ({', '.join(pins)});"


def _library() -> Path:
    source = (files("adagp.rtl") / "gate_simulator.cpp").read_text(encoding="utf-8")

    def make(work: Path) -> None:
        (work / "gates.cpp").write_text(source, encoding="utf-8")
        run(["g++", "-O2", "-fPIC", "-shared", "gates.cpp", "-o", "gates.so"], work)

    return cached_folder(f"gates-{digest(source)}", make) / "gates.so"


LOADS = 16
"""The most that a net may drive, in inputs of a buffer."""
PortLoads = Mapping[str, list[float]]
"""Loads of a block's inputs, bit by bit, in the library's unit of capacitance."""


@dataclass(frozen=True)
class _Sink:
    """A bit of an instance's pin that a net drives."""

    bits: list[Any]
    index: int
    load: float


def best_buffer(cells: Mapping[str, LibraryCell]) -> LibraryCell | None:
    """Return the buffer that drives most for its area, if the library has any."""
    buffers = [cell for cell in cells.values() if cell.is_buffer and cell.area and cell.drives]
    return max(buffers, key=lambda cell: cell.drives / cell.area, default=None)


def with_buffers(
    module: Mapping[str, Any], cells: Mapping[str, LibraryCell], inside: Mapping[str, PortLoads]
) -> dict[str, Any]:
    """Return a block of Yosys's JSON with buffer trees on nets of many loads. `inside` has the loads of the blocks in it."""
    buffered: dict[str, Any] = copy.deepcopy(dict(module))
    buffer = best_buffer(cells)
    if buffer is not None:
        tree = _Trees(buffered, buffer)
        for net, sinks in _sinks(buffered, cells, inside).items():
            tree.grow(net, sinks)
    return buffered


def port_loads(
    module: Mapping[str, Any], cells: Mapping[str, LibraryCell], inside: Mapping[str, PortLoads]
) -> dict[str, list[float]]:
    """Return the load that each input of a block puts on the net outside."""
    loads = {net: sum(sink.load for sink in sinks) for net, sinks in _sinks(module, cells, inside).items()}
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
            for index, (bit, load) in enumerate(zip(bits, loads, strict=False)):
                if isinstance(bit, int) and load:
                    sinks.setdefault(bit, []).append(_Sink(bits, index, load))
    return sinks


class _Trees:
    """Adds buffers to a module."""

    def __init__(self, module: dict[str, Any], buffer: LibraryCell) -> None:
        self.cells, self.buffer = module["cells"], buffer
        (self.input,), (self.output,) = buffer.inputs, buffer.functions
        self.load = buffer.loads[self.input]
        nets = _cell_bits(module) + [bit for port in module["ports"].values() for bit in port["bits"]]
        self.free = 1 + max((net for net in nets if isinstance(net, int)), default=0)

    def grow(self, net: int, sinks: list[_Sink]) -> None:
        """Put buffers between a net and what it drives, level by level, until it drives little enough."""
        while sum(sink.load for sink in sinks) > LOADS * self.load and len(sinks) > 1:
            sinks = [self._drive(net, group) for group in self._groups(sinks)]

    def _groups(self, sinks: list[_Sink]) -> list[list[_Sink]]:
        groups: list[list[_Sink]] = [[]]
        for sink in sinks:
            if groups[-1] and sum(member.load for member in groups[-1]) + sink.load > LOADS * self.load:
                groups.append([])
            groups[-1].append(sink)
        return groups

    def _drive(self, net: int, group: list[_Sink]) -> _Sink:
        """Drive a group by a new buffer; return the buffer's own input."""
        for sink in group:
            sink.bits[sink.index] = self.free
        bits: list[Any] = [net]
        connections = {self.input: bits, self.output: [self.free]}
        self.cells[f"buffer_{self.free}"] = {"type": self.buffer.name, "connections": connections}
        self.free += 1
        return _Sink(bits, 0, self.load)
