"""Synthesis by Yosys for Xilinx's 7 series (`xc7`: LUTs, registers, DSPs, block RAMs) or for the cells of a Liberty file.

Each kind of block is synthesised once, cached by a digest of its netlist, and counted as often as the chip has it. With a
Liberty file cells and their area are counted; memories in bits, since such libraries have no SRAM.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.core.files import LARGEST_TEXT
from adagp.errors import OptionError, ToolError
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import chip_modules
from adagp.rtl.gate_netlist import LOADS, PortLoads, best_buffer, port_loads, with_buffers
from adagp.rtl.liberty import LibraryCell, read_cells
from adagp.rtl.tools import cached_folder, digest, yosys

OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
"""Where Debian's package qflow-tech-osu018 has its cells."""
OSU018_NODE = 180
"""Nanometres of their process."""


@dataclass(frozen=True)
class Target:
    """What is synthesised for: Xilinx's 7 series, with or without DSPs, or a Liberty file."""

    liberty: Path | None = None
    dsp: bool = True

    @property
    def library(self) -> str:
        """The text of the Liberty file, if there is one."""
        return "" if self.liberty is None else self.liberty.read_text(encoding="latin-1")

    @property
    def name(self) -> str:
        """The target as it is written on the command line."""
        return "xc7" if self.liberty is None else f"liberty:{self.liberty}"


def parse_target(text: str) -> Target:
    """Return the target that `text` names: xc7, liberty (Debian's osu018) or liberty:FILE."""
    if text == "xc7":
        return Target()
    if text == "liberty":
        if not OSU018.is_file():
            raise OptionError(
                "no Liberty file was given and Debian's is not installed; give --target liberty:FILE, "
                "or install the package qflow-tech-osu018."
            )
        return Target(OSU018)
    if text.startswith("liberty:"):
        path = Path(text.removeprefix("liberty:"))
        if not path.is_file():
            raise OptionError(f"there is no Liberty file '{path}'.")
        if path.stat().st_size > LARGEST_TEXT:
            raise OptionError(f"'{path}' has more than {LARGEST_TEXT:,} bytes, which no Liberty file has.")
        target = Target(path)
        try:
            read_cells(target.library)
        except OptionError as error:
            raise OptionError(f"'{path}': {error}") from None
        return target
    raise OptionError(f"unknown target '{text}'. Choose from: xc7, liberty, liberty:FILE.")


SIZED = (
    "strash;&get,-n;&fraig,-x;&put;scorr;dc2;dch,-f;map,-B,0.9;topo;"  # abc's own script, as Yosys has it
    f"buffer,-c,-p,-N,{LOADS};upsize;dnsize"
)
"""Commands of abc: they size the gates for the longest path, and insert buffers, also at inputs."""


def inner_kinds(texts: Mapping[str, str], kind: str) -> list[str]:
    """Return the kinds of the blocks inside a block."""
    return [name for name in texts if name != kind and re.search(rf"\bcell \\{re.escape(name)} ", texts[kind])]


def mapped_module(texts: Mapping[str, str], kind: str, target: Target) -> dict[str, Any]:
    """Return the netlist of one kind of block as Yosys's JSON has it: ports, cells of a Liberty file, inner blocks, nets.

    Nets of many loads have buffers.
    """
    return _buffered(texts, kind, target)[0]


def _buffered(texts: Mapping[str, str], kind: str, target: Target) -> tuple[dict[str, Any], PortLoads]:
    """Return the netlist of one kind of block, and the loads of its inputs."""
    cells = read_cells(target.library)
    inside = {name: _buffered(texts, name, target)[1] for name in inner_kinds(texts, kind)}
    text = (synthesised(texts, kind, target) / "netlist.json").read_text(encoding="utf-8")
    buffered = with_buffers(json.loads(text)["modules"][kind], cells, inside)
    return buffered, port_loads(buffered, cells, inside)


def synthesised(texts: Mapping[str, str], kind: str, target: Target) -> Path:
    """Return the folder of one kind's synthesis, from the cache if its netlist was synthesised before."""
    others = inner_kinds(texts, kind)
    text = "\n".join([*(texts[name] for name in others), texts[kind]])
    # Only the ports of the inner blocks matter to this one.
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

    return cached_folder(f"synthesis-{digest(text, target.library, *script)}", make)


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


_LUT_CELLS = {
    "RAM32X1D": 2,
    "RAM64X1D": 2,
    "RAM128X1D": 4,
    "RAM32M": 4,
    "RAM64M": 4,
    "SRL16E": 1,
    "SRLC32E": 1,
    "INV": 1,
}
"""Look-up tables that these cells take, in addition to LUT1 to LUT6, which take one each."""
FPGA_RESOURCES, CELL_RESOURCES = ("lut", "ff", "dsp", "ramb36", "ramb18"), ("cells", "area")


@dataclass(frozen=True)
class KindReport:
    """One kind of block, without the blocks inside it: resources of one, how many there are in the chip, blocks inside."""

    resources: Mapping[str, float]
    inside: Mapping[str, int]


@dataclass(frozen=True)
class ChipReport:
    """All kinds of a chip: `modules[kind]` has the resources of one, `counts[kind]` how many there are."""

    modules: Mapping[str, Mapping[str, float]]
    counts: Mapping[str, int]

    @property
    def totals(self) -> dict[str, float]:
        """Resources of the whole chip."""
        totals: Counter[str] = Counter()
        for kind, resources in self.modules.items():
            for name, value in resources.items():
                totals[name] += value * self.counts[kind]  # type: ignore[assignment]  # areas are real numbers
        return dict(totals)


def synthesize(blueprint: Blueprint, target: Target, progress: Callable[[str], None] | None = None) -> ChipReport:
    """Return the resources of a chip; `progress` is called with each kind of block before it is synthesised."""
    texts = chip_modules(blueprint)
    reports: dict[str, KindReport] = {}
    for kind in texts:
        if progress is not None:
            progress(kind)
        reports[kind] = synthesize_kind(texts, kind, target)
    counts: Counter[str] = Counter({"chip": 1})
    for kind in reversed(texts):  # a block comes before those inside it
        for name, number in reports[kind].inside.items():
            counts[name] += number * counts[kind]
    return ChipReport({kind: report.resources for kind, report in reports.items()}, dict(counts))


def synthesize_kind(texts: Mapping[str, str], kind: str, target: Target) -> KindReport:
    """Return what one kind of block takes."""
    others = inner_kinds(texts, kind)
    if target.liberty is not None:
        return _cell_report(mapped_module(texts, kind, target), others, read_cells(target.library))
    text = (synthesised(texts, kind, target) / "stat.json").read_text(encoding="utf-8")
    return _fpga_report(json.loads(re.sub(r"^[^{]*", "", text))["modules"][f"\\{kind}"], others)


def _cell_report(module: Mapping[str, Any], others: list[str], cells: Mapping[str, LibraryCell]) -> KindReport:
    numbers = Counter(cell["type"].removeprefix("\\") for cell in module["cells"].values())
    inside = {name: numbers.pop(name) for name in others}
    logic = {name: number for name, number in numbers.items() if not name.startswith("$")}
    missing = next((name for name in logic if name not in cells), None)
    if missing is not None:
        raise ToolError(f"the library has no cell for '{missing}'.")
    area = sum(cells[name].area * number for name, number in logic.items())
    return KindReport({"cells": sum(logic.values()), "area": area}, inside)


def _fpga_report(statistics: Mapping[str, Any], others: list[str]) -> KindReport:
    cells = {name.removeprefix("\\"): _number(value) for name, value in statistics["num_cells_by_type"].items()}
    inside = {name: int(cells.pop(name)) for name in others if name in cells}
    luts = sum(value * _LUT_CELLS.get(name, name.startswith("LUT")) for name, value in cells.items())
    return KindReport(
        {
            "lut": luts,
            "ff": sum(value for name, value in cells.items() if re.fullmatch(r"FD[RSCP]E(_1)?", name)),
            "dsp": cells.get("DSP48E1", 0),
            "ramb36": cells.get("RAMB36E1", 0),
            "ramb18": cells.get("RAMB18E1", 0),
        },
        inside,
    )


def _number(value: Any) -> float:
    """Return a count of cells, which newer versions of Yosys give with an area."""
    return float(value["count"] if isinstance(value, dict) else value)
