"""Synthesis by Yosys: each kind of block once, counted as often as it is there; kept by a digest of its netlist.

Targets are Xilinx's 7 series (`xc7`: LUTs, registers, DSPs, block RAMs) and any Liberty file (cells and their area; memories
are counted in bits there, since such libraries have no SRAM).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.errors import OptionError
from adagp.rtl.chip import Blueprint
from adagp.rtl.netlist import chip_modules
from adagp.rtl.tools import digest, kept, yosys

OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
"""Where Debian's package qflow-tech-osu018 has its cells, of 180 nm."""
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
"""Look-up tables of what is made of them besides LUT1 to LUT6."""
FPGA_RESOURCES, CELL_RESOURCES = ("lut", "ff", "dsp", "ramb36", "ramb18"), ("cells", "area")


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
        return Target(path)
    raise OptionError(f"unknown target '{text}'. Choose from: xc7, liberty, liberty:FILE.")


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
    """Return the resources of a chip; `progress` hears of each kind of block before it is synthesised."""
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
    return ChipReport({kind: one.resources for kind, one in reports.items()}, dict(counts))


def inner_kinds(texts: Mapping[str, str], kind: str) -> list[str]:
    """Return the kinds of the blocks inside a block."""
    return [name for name in texts if name != kind and re.search(rf"\bcell \\{re.escape(name)} ", texts[kind])]


def synthesize_kind(texts: Mapping[str, str], kind: str, target: Target) -> KindReport:
    """Return what one kind of block takes."""
    folder = _synthesised(texts, kind, target)
    found = json.loads(re.sub(r"^[^{]*", "", (folder / "stat.json").read_text(encoding="utf-8")))
    return _report(found["modules"][f"\\{kind}"], inner_kinds(texts, kind), target)


def mapped_module(texts: Mapping[str, str], kind: str, target: Target) -> dict[str, Any]:
    """Return the netlist of one kind of block as Yosys's JSON has it: ports, cells of a Liberty file, inner blocks, nets."""
    text = (_synthesised(texts, kind, target) / "netlist.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["modules"][kind]
    return found


def _synthesised(texts: Mapping[str, str], kind: str, target: Target) -> Path:
    """Return the folder of one kind's synthesis, from the cache if its netlist was synthesised before."""
    others = inner_kinds(texts, kind)
    text = "\n".join([*(texts[name] for name in others), texts[kind]])
    # What an instance is called inside the others does not matter to this one.
    hidden = [rf"blackbox \{name}" for name in others]
    script = [f"read_rtlil {kind}.il", *hidden, *_script(kind, target)]

    def make(work: Path) -> None:
        (work / f"{kind}.il").write_text(text, encoding="utf-8")
        if target.liberty is not None:
            (work / "cells.lib").write_text(target.library, encoding="latin-1")
        yosys(script, work)
        for path in work.iterdir():
            if path.name not in ("stat.json", "netlist.json"):
                path.unlink()

    return kept(f"synthesis-{digest(text, target.library, *script)}", make)


def _script(kind: str, target: Target) -> list[str]:
    if target.liberty is None:
        without = "" if target.dsp else " -nodsp"
        return [
            f"synth_xilinx -family xc7 -top {kind} -flatten -noiopad -noclkbuf{without}",
            "tee -o stat.json stat -json",
        ]
    return [
        f"hierarchy -top {kind}",
        "proc",
        "flatten",
        "memory -nomap",
        "opt -full",
        "wreduce",
        "alumacc",
        "techmap",
        "opt",
        "dfflegalize -cell $_DFF_P_ 01",
        "dfflibmap -liberty cells.lib",
        "abc -liberty cells.lib",
        "opt_clean -purge",
        "tee -o stat.json stat -liberty cells.lib -json",
        "write_json netlist.json",
    ]


def _report(found: Mapping[str, Any], others: list[str], target: Target) -> KindReport:
    cells = {name.removeprefix("\\"): _number(value) for name, value in found["num_cells_by_type"].items()}
    inside = {name: int(cells.pop(name)) for name in others if name in cells}
    if target.liberty is not None:
        logic = {name: value for name, value in cells.items() if not name.startswith("$")}
        area = float(found.get("area", 0.0))
        return KindReport({"cells": sum(logic.values()), "area": area}, inside)
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
    """Return a count of cells, which newer versions of Yosys give with an area beside it."""
    return float(value["count"] if isinstance(value, dict) else value)
