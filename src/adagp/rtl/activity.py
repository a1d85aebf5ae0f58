"""Switching activity of a chip's gates in a simulation of real work.

The chip's RTL is simulated, and the ports of some blocks of each kind are recorded in a waveform file (VCD). The recorded
inputs are then replayed on the kind's synthesised netlist, whose outputs must be the same, cycle by cycle, while the changes of
every net are counted. Gates have no delay in this, so glitches within a cycle are not counted.
"""

import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adagp.errors import ToolError
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import chip_modules
from adagp.rtl.gate_netlist import GateNetlist, Pin
from adagp.rtl.liberty import read_cells
from adagp.rtl.simulation import VerilatedChip
from adagp.rtl.synthesis import Target, mapped_module

PortWords = dict[str, NDArray[np.uint32]]
"""By port: cycles x words of 32 bits, the lowest first."""
CYCLE = 10
"""Units of time of a cycle in the files that the simulations write; in its first half the clock is low."""


def read_ports(path: Path, scopes: Mapping[str, Mapping[str, int]], cycles: int) -> dict[str, PortWords]:
    """Return the ports of `scopes` (names and widths by scope) at the end of the low half of each of the first cycles."""
    with path.open(encoding="utf-8") as lines:
        ports = _header(lines, scopes)
        changes: dict[str, tuple[list[int], list[int]]] = {code: ([], []) for code in ports}
        for cycle, code, value in _value_changes(lines):
            if code in changes:
                when, values = changes[code]
                when.append(cycle)
                values.append(value)
    words: dict[str, PortWords] = {scope: {} for scope in scopes}
    for code, (when, values) in changes.items():
        for scope, name in ports[code]:
            words[scope][name] = _filled(when, values, scopes[scope][name], cycles)
    return words


def _value_changes(lines: Iterable[str]) -> Iterator[tuple[int, str, int]]:
    cycle = 0
    for line in lines:
        first = line[0]
        if first == "#":
            # A change in the high half of a cycle is there at the end of the next low one.
            cycle = -(-int(line[1:]) // CYCLE)
        elif first in "01":
            yield cycle, line[1:].rstrip(), int(first)
        elif first == "b":
            text, _, code = line[1:].rstrip().partition(" ")
            yield cycle, code, int(text, 2)


def _filled(when: list[int], values: list[int], bits: int, cycles: int) -> NDArray[np.uint32]:
    """Return a signal's words in each cycle: those of its last change."""
    last = np.searchsorted(np.array(when), np.arange(cycles), side="right") - 1
    words = [[(value >> (32 * word)) & 0xFFFFFFFF for word in range(-(-bits // 32))] for value in values]
    return np.array(words, np.uint32)[last]


def _header(lines: Iterator[str], scopes: Mapping[str, Collection[str]]) -> dict[str, list[tuple[str, str]]]:
    """Return the signals of `scopes`, as (scope, name), by their codes; `lines` are left behind the definitions.

    One code may stand for several signals.
    """
    scope: list[str] = []
    signals: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] == "$scope":
            scope.append(words[2])
        elif words[0] == "$upscope":
            scope.pop()
        elif words[0] == "$var" and words[4] in scopes.get(".".join(scope), ()):
            signals.setdefault(words[3], []).append((".".join(scope), words[4]))
        elif words[0] == "$enddefinitions":
            break
    return signals


SAMPLES = 8
"""Blocks of a kind that are recorded, at most, evenly over all there are."""
ROOT = "chip.chip"
"""The chip in waveform files: a module inside the simulated model."""


@dataclass(frozen=True)
class KindActivity:
    """Changes of the nets at the pins of a kind's gates, per cycle and block; and how many blocks were recorded."""

    pins: Mapping[Pin, float]
    blocks: int

    @property
    def mean(self) -> float:
        """Changes of a pin per cycle, on average."""
        return sum(self.pins.values()) / max(1, len(self.pins))


@dataclass(frozen=True)
class WrittenModule:
    """A kind of block as it was written: its ports, as direction and width, and the kinds of the blocks inside it."""

    ports: Mapping[str, tuple[str, int]]
    inside: Mapping[str, str]


def read_module(text: str) -> WrittenModule:
    """Return what a module in Yosys's language has, but for its clock."""
    ports = re.finditer(r"^  wire (?:width (\d+) )?(input|output) \d+\s+\\(\S+)$", text, re.MULTILINE)
    cells = re.finditer(r"^  cell \\(\w+) \\(\S+)$", text, re.MULTILINE)
    return WrittenModule(
        {port[3]: (port[2], int(port[1] or 1)) for port in ports if port[3] != "clk"},
        {cell[2]: cell[1] for cell in cells},
    )


def instances(modules: Mapping[str, WrittenModule]) -> dict[str, list[str]]:
    """Return the paths of all blocks of each kind, from the chip down; blocks inside a block come before it in `modules`."""
    paths: dict[str, list[str]] = {"chip": [ROOT]}
    for kind in reversed(list(modules)):
        for path in paths[kind]:
            for name, child in modules[kind].inside.items():
                paths.setdefault(child, []).append(f"{path}.{name}")
    return paths


def record_activity(
    blueprint: Blueprint, target: Target, work: Callable[[VerilatedChip], None], progress: Callable[[str], None]
) -> tuple[dict[str, KindActivity], int]:
    """Return the activity of each kind of block while a simulated chip runs in `work`, and the cycles of these runs."""
    texts = chip_modules(blueprint)
    modules = {kind: read_module(text) for kind, text in texts.items()}
    cells = read_cells(target.library)
    scopes = {kind: _evenly(paths) for kind, paths in instances(modules).items() if not kind.startswith("bank_")}
    netlists: dict[str, GateNetlist] = {}
    ports: dict[str, dict[str, int]] = {}
    for kind, paths in scopes.items():
        progress(f"gates of {kind}")
        netlists[kind] = GateNetlist(mapped_module(texts, kind, target), cells)
        for path in paths:
            _add_ports(ports, netlists[kind], modules, kind, path)
    progress("simulation")
    seen, counted = _simulate(blueprint, ports, work)
    # Off-chip memory is a part of simulated chips: what it sends is seen at the port that it sends to.
    seen[ROOT] |= {
        name: words for name, words in seen.get(f"{ROOT}.off_chip_port", {}).items() if name.startswith("off_chip_")
    }
    activities = {}
    for kind, paths in scopes.items():
        progress(f"activity of {kind}")
        total = sum(_replay(netlists[kind], modules, kind, path, seen, counted) for path in paths)
        changes = np.asarray(total) / (int(counted.sum()) * len(paths))
        activities[kind] = KindActivity(
            {pin: float(changes[net]) for pin, net in netlists[kind].pins.items()}, len(paths)
        )
    return activities, int(counted.sum())


def _add_ports(
    ports: dict[str, dict[str, int]], netlist: GateNetlist, modules: Mapping[str, WrittenModule], kind: str, path: str
) -> None:
    """Add the ports to record for the block at `path`: its own, and those of the blocks inside that it reads."""
    ports[path] = ports.get(path, {}) | {name: bits for name, (_, bits) in modules[kind].ports.items()}
    for name, port in _read_inside(netlist, modules, kind):
        _, bits = modules[modules[kind].inside[name]].ports[port]
        ports.setdefault(f"{path}.{name}", {})[port] = bits


def _simulate(
    blueprint: Blueprint, ports: Mapping[str, Mapping[str, int]], work: Callable[[VerilatedChip], None]
) -> tuple[dict[str, PortWords], NDArray[np.uint8]]:
    """Return the wanted ports in each cycle of `work`, and which cycles count: those in which the chip runs."""
    with tempfile.TemporaryDirectory() as folder:
        vcd = Path(folder) / "ports.vcd"
        with VerilatedChip(blueprint, vcd, scopes=list(ports)) as chip:
            work(chip)
            counted = np.zeros(chip.now, np.uint8)
            for start, end in chip.runs:
                counted[start:end] = 1
        return read_ports(vcd, ports, len(counted)), counted


def _evenly(paths: Sequence[str]) -> list[str]:
    indices = np.linspace(0, len(paths) - 1, min(SAMPLES, len(paths))).astype(int)
    return [paths[index] for index in indices]


def _read_inside(netlist: GateNetlist, modules: Mapping[str, WrittenModule], kind: str) -> list[tuple[str, str]]:
    """Return the outputs of inner blocks that gates or the block's own ports read. Other wires only connect blocks."""
    read = netlist.read_by_gates | {net for nets in netlist.ports.values() for net in nets}
    return [
        (name, port)
        for name, child in modules[kind].inside.items()
        for port, (direction, _) in modules[child].ports.items()
        if direction == "output" and not read.isdisjoint(netlist.inside[name].get(port, ()))
    ]


def _replay(
    netlist: GateNetlist,
    modules: Mapping[str, WrittenModule],
    kind: str,
    path: str,
    seen: Mapping[str, PortWords],
    counted: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Replay one block's recorded inputs on its kind's netlist; return the changes of its nets."""
    driven: dict[int, NDArray[np.uint8]] = {}
    expected: dict[int, NDArray[np.uint8]] = {}
    for name, (direction, _) in modules[kind].ports.items():
        if name in seen[path]:
            (driven if direction == "input" else expected).update(_bits(netlist.ports[name], seen[path][name]))
    for name, port in _read_inside(netlist, modules, kind):
        driven |= _bits(netlist.inside[name][port], seen[f"{path}.{name}"][port])
    changes, wrong = netlist.simulate(driven, expected, counted)
    if wrong:
        raise ToolError(f"the netlist of {path} does not match the chip: {wrong} cycles differ.")
    return changes


def _bits(nets: Sequence[int], words: NDArray[np.uint32]) -> dict[int, NDArray[np.uint8]]:
    return {
        net: ((words[:, bit // 32] >> np.uint32(bit % 32)) & np.uint32(1)).astype(np.uint8)
        for bit, net in enumerate(nets)
    }
