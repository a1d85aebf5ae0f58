"""Synthesis of one kind of block by Yosys, kept by a digest of its netlist; of gates, with buffers where a net drives many."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adagp.rtl.buffers import LOADS, PortLoads, best_buffer, port_loads, with_buffers
from adagp.rtl.liberty import read_cells
from adagp.rtl.targets import Target
from adagp.rtl.tools import digest, kept, yosys

SIZED = (
    "strash;&get,-n;&fraig,-x;&put;scorr;dc2;dch,-f;map,-B,0.9;topo;"  # abc's own script, as Yosys has it
    f"buffer,-c,-p,-N,{LOADS};upsize;dnsize"
)
"""Commands of abc: gates as large as the longest path wants them, and buffers, also for what comes in."""


def inner_kinds(texts: Mapping[str, str], kind: str) -> list[str]:
    """Return the kinds of the blocks inside a block."""
    return [name for name in texts if name != kind and re.search(rf"\bcell \\{re.escape(name)} ", texts[kind])]


def mapped_module(texts: Mapping[str, str], kind: str, target: Target) -> dict[str, Any]:
    """Return the netlist of one kind of block as Yosys's JSON has it: ports, cells of a Liberty file, inner blocks, nets.

    Nets of many loads have buffers.
    """
    return _buffered(texts, kind, target)[0]


def _buffered(texts: Mapping[str, str], kind: str, target: Target) -> tuple[dict[str, Any], PortLoads]:
    """Return the netlist of one kind of block, and what its inputs load the nets outside."""
    cells = read_cells(target.library)
    inside = {name: _buffered(texts, name, target)[1] for name in inner_kinds(texts, kind)}
    text = (synthesised(texts, kind, target) / "netlist.json").read_text(encoding="utf-8")
    found = with_buffers(json.loads(text)["modules"][kind], cells, inside)
    return found, port_loads(found, cells, inside)


def synthesised(texts: Mapping[str, str], kind: str, target: Target) -> Path:
    """Return the folder of one kind's synthesis, from the cache if its netlist was synthesised before."""
    others = inner_kinds(texts, kind)
    text = "\n".join([*(texts[name] for name in others), texts[kind]])
    # What an instance is called inside the others does not matter to this one.
    hidden = [rf"blackbox \{name}" for name in others]
    steps = _fpga_script(texts[kind], kind, target.dsp) if target.liberty is None else _cell_script(kind, target)
    script = [f"read_rtlil {kind}.il", *hidden, *steps]

    def make(work: Path) -> None:
        (work / f"{kind}.il").write_text(text, encoding="utf-8")
        if target.liberty is not None:
            (work / "cells.lib").write_text(target.library, encoding="latin-1")
        yosys(script, work)
        for path in work.iterdir():
            if path.name not in ("stat.json", "netlist.json"):
                path.unlink()

    return kept(f"synthesis-{digest(text, target.library, *script)}", make)


def _fpga_script(text: str, kind: str, dsp: bool) -> list[str]:
    command = f"synth_xilinx -family xc7 -top {kind} -flatten -noiopad -noclkbuf{'' if dsp else ' -nodsp'}"
    # Half of the time of a small block would go into reading what memories could be made of.
    memories = re.search(r"^  memory ", text, re.MULTILINE) is not None
    runs = [command] if memories else [f"{command} -run begin:map_memory", f"{command} -run map_ffram:"]
    return [*runs, "tee -o stat.json stat -json"]


def _cell_script(kind: str, target: Target) -> list[str]:
    # Without buffers in the library nothing can be made faster.
    sizing = f" -script +{SIZED}" if best_buffer(read_cells(target.library)) else ""
    return [
        f"hierarchy -top {kind}",
        "proc",
        "flatten",
        "memory -nomap",
        "opt -full",
        "wreduce",
        "booth",
        "alumacc",
        "techmap",
        "opt",
        "dfflegalize -cell $_DFF_P_ 01",
        "dfflibmap -liberty cells.lib",
        f"abc -liberty cells.lib{sizing}",
        "opt_clean -purge",
        "write_json netlist.json",
    ]
