"""Place and route a block of the chip in osu018 with qflow: its area and clock with wires.

python -m tools.route_block element int8 1        # block (without banks), number format, pipeline stages

Needs Debian's `qflow`, `qflow-tech-osu018`, `graywolf`, `qrouter` and `yosys`. The gates are those of
`adagp rtl synthesize --target liberty`: qflow's own synthesis is left out. graywolf places, qrouter routes, vesta times with
the wires' delays.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.chip import chip_modules
from adagp.rtl.formats import FORMATS
from adagp.rtl.gate_netlist import structural_verilog
from adagp.rtl.liberty import read_cells
from adagp.rtl.synthesis import OSU018, Target, mapped_module

TO_BLIF = (
    "read_liberty -lib {liberty}; read_verilog source/{name}.v; hierarchy -top {name}; splitnets -ports -format _; opt_clean; "
    "write_blif -gates -buf BUFX2 A Y synthesis/{name}.blif"
)


def route_block(name: str, number: str, stages: int, work: Path) -> dict[str, Any]:
    """Place and route a block in the folder `work`, and return what came out."""
    blueprint = make_blueprint("baseline", Array(4, 4), FORMATS[number], stages=stages)
    target = Target(OSU018)
    module = mapped_module(chip_modules(blueprint), name, target)
    for folder in ("source", "synthesis", "layout", "log"):
        (work / folder).mkdir()
    (work / "source" / f"{name}.v").write_text(structural_verilog(name, module), encoding="utf-8")
    _run(work, "yosys", "-q", "-p", TO_BLIF.format(liberty=OSU018, name=name))
    blif = work / "synthesis" / f"{name}.blif"
    # Yosys declares constants that nothing uses; to qflow they are cells without a size.
    blif.write_text(re.sub(r"^\.names \$.*\n(?:1\n)?", "", blif.read_text("utf-8"), flags=re.MULTILINE), "utf-8")
    (work / "synthesis" / f"{name}_powerground").write_text('set vddnet="vdd"\nset gndnet="gnd"\n', encoding="utf-8")
    for step in ("place", "route", "backanno"):
        _run(work, "qflow", step, "-T", "osu018", "-p", str(work), name)
    cells = read_cells(target.library)
    used = re.findall(r"^\.gate (\w+)", blif.read_text("utf-8"), flags=re.MULTILINE)
    return {
        "cells": len(used),
        "cell_square_microns": sum(cells[kind].area for kind in used),
        **_layout((work / "layout" / f"{name}.def").read_text("utf-8")),
        "routes_failed": "Final: No failed routes!" not in (work / "log" / "route.log").read_text("utf-8"),
        "megahertz": _clock((work / "log" / "post_sta.log").read_text("utf-8")),
    }


def _run(work: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _layout(definition: str) -> dict[str, Any]:
    """Return the area of the rectangle that qflow's layout (DEF) takes, cells, fill and power stripes."""
    units = re.search(r"UNITS DISTANCE MICRONS (\d+)", definition)
    area = re.search(r"DIEAREA \( (\S+) (\S+) \) \( (\S+) (\S+) \)", definition)
    if units is None or area is None:
        sys.exit("the layout has no DIEAREA.")
    left, bottom, right, top = (int(edge) / int(units[1]) for edge in area.groups())
    return {
        "width_microns": right - left,
        "height_microns": top - bottom,
        "square_microns": (right - left) * (top - bottom),
    }


def _clock(report: str) -> float | None:
    """Return the fastest clock from register to register."""
    match = re.search(r"maximum clock frequency \(zero margin\) = (\S+) MHz", report)
    return None if match is None else float(match[1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(route_block(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(folder)), indent=2))
