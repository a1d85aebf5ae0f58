"""What a chip takes: each kind of block is synthesised once, and counted as often as it is there."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adagp.errors import ToolError
from adagp.rtl.chip import Blueprint
from adagp.rtl.liberty import LibraryCell, read_cells
from adagp.rtl.mapped import inner_kinds, mapped_module, synthesised
from adagp.rtl.netlist import chip_modules
from adagp.rtl.targets import Target

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


def synthesize_kind(texts: Mapping[str, str], kind: str, target: Target) -> KindReport:
    """Return what one kind of block takes."""
    others = inner_kinds(texts, kind)
    if target.liberty is not None:
        return _cell_report(mapped_module(texts, kind, target), others, read_cells(target.library))
    text = (synthesised(texts, kind, target) / "stat.json").read_text(encoding="utf-8")
    return _fpga_report(json.loads(re.sub(r"^[^{]*", "", text))["modules"][f"\\{kind}"], others)


def _cell_report(module: Mapping[str, Any], others: list[str], cells: Mapping[str, LibraryCell]) -> KindReport:
    numbers = Counter(one["type"].removeprefix("\\") for one in module["cells"].values())
    inside = {name: numbers.pop(name) for name in others}
    logic = {name: number for name, number in numbers.items() if not name.startswith("$")}
    missing = next((name for name in logic if name not in cells), None)
    if missing is not None:
        raise ToolError(f"the library has no cell for '{missing}'.")
    area = sum(cells[name].area * number for name, number in logic.items())
    return KindReport({"cells": sum(logic.values()), "area": area}, inside)


def _fpga_report(found: Mapping[str, Any], others: list[str]) -> KindReport:
    cells = {name.removeprefix("\\"): _number(value) for name, value in found["num_cells_by_type"].items()}
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
    """Return a count of cells, which newer versions of Yosys give with an area beside it."""
    return float(value["count"] if isinstance(value, dict) else value)
