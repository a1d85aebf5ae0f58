"""Reading waveform files (VCD): what the ports of some blocks were, cycle by cycle."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PortWords = dict[str, NDArray[np.uint32]]
"""By port: cycles x words of 32 bits, the lowest first."""
CYCLE = 10
"""Units of time of a cycle in the files that the simulations write; in its first half the clock is low."""


@dataclass(frozen=True)
class _Signal:
    scope: str
    name: str
    bits: int


def read_ports(path: Path, scopes: Mapping[str, Mapping[str, int]], cycles: int) -> dict[str, PortWords]:
    """Return the ports of `scopes` (names and widths by scope) at the end of the low half of each of the first cycles."""
    with path.open(encoding="utf-8") as lines:
        signals = _header(lines)
        wanted = {
            code: [one for one in named if one.name in scopes.get(one.scope, {})] for code, named in signals.items()
        }
        changes: dict[str, tuple[list[int], list[int]]] = {code: ([], []) for code, named in wanted.items() if named}
        cycle = 0
        for line in lines:
            first = line[0]
            if first == "#":
                # A change in the high half of a cycle is there at the end of the next low one.
                cycle = -(-int(line[1:]) // CYCLE)
                continue
            if first in "01":
                code, value = line[1:].rstrip(), int(first)
            elif first == "b":
                text, _, code = line[1:].rstrip().partition(" ")
                value = int(text, 2)
            else:
                continue
            if code in changes:
                when, values = changes[code]
                when.append(cycle)
                values.append(value)
    found: dict[str, PortWords] = {scope: {} for scope in scopes}
    for code, (when, values) in changes.items():
        for one in wanted[code]:
            found[one.scope][one.name] = _filled(when, values, scopes[one.scope][one.name], cycles)
    return found


def _filled(when: list[int], values: list[int], bits: int, cycles: int) -> NDArray[np.uint32]:
    """Return a signal's words in each cycle: those of its last change."""
    last = np.searchsorted(np.array(when), np.arange(cycles), side="right") - 1
    words = [[(value >> (32 * word)) & 0xFFFFFFFF for word in range(-(-bits // 32))] for value in values]
    return np.array(words, np.uint32)[last]


def _header(lines: Iterator[str]) -> dict[str, list[_Signal]]:
    """Return the signals by their codes, of which one may stand for several; `lines` are left behind the definitions."""
    scope: list[str] = []
    signals: dict[str, list[_Signal]] = {}
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] == "$scope":
            scope.append(words[2])
        elif words[0] == "$upscope":
            scope.pop()
        elif words[0] == "$var":
            one = _Signal(".".join(scope), words[4], int(words[2]))
            signals.setdefault(words[3], []).append(one)
        elif words[0] == "$enddefinitions":
            break
    return signals
