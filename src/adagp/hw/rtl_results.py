"""Results of `adagp rtl` for the accelerator model: the clock of `adagp rtl place`, the energy of PEs of `adagp rtl power`.

The energy of a PE is measured whole: multiplier, registers, links and clock. It is scaled from the cells' process to 45 nm and
0.9 V, for which the energy table has its arithmetic: capacitance by the node, voltage squared.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adagp.core.files import read_text
from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.energy import EnergyEntry

NODE, VOLTS = 45, 0.9
"""What energies are scaled to."""


def with_rtl(accelerator: Accelerator, paths: Sequence[Path]) -> Accelerator:
    """Return `accelerator` with what files of `adagp rtl place --json` and `adagp rtl power --json` have measured.

    All designs run at one clock, that of the slowest in the file, and have the baseline's PEs.
    """
    origins: dict[str, Path] = {}
    for path in paths:
        report = _read(path)
        kind = "power" if "equal_power_pes" in report else "place"
        if kind in origins:
            raise OptionError(f"'{origins[kind]}' and '{path}' are both from adagp rtl {kind}; give one of them.")
        origins[kind] = path
        accelerator = (_with_power if kind == "power" else _with_clock)(accelerator, path, report)
    return accelerator


def _read(path: Path) -> Mapping[str, Any]:
    try:
        report = json.loads(read_text(path, "the results of adagp rtl"))
    except (ValueError, RecursionError):
        raise OptionError(f"'{path}' is not JSON.") from None
    designs = report.get("designs") if isinstance(report, Mapping) else None
    if (
        not isinstance(designs, Mapping)
        or not designs
        or not all(isinstance(chip, Mapping) for chip in designs.values())
    ):
        raise OptionError(
            f"'{path}' has no designs; give a file that `adagp rtl place --json` or `power --json` wrote."
        )
    return dict(report)


def _with_clock(accelerator: Accelerator, path: Path, report: Mapping[str, Any]) -> Accelerator:
    clocks = [
        _positive(path, f"megahertz of {name}", chip.get("megahertz")) for name, chip in report["designs"].items()
    ]
    return replace(accelerator, clock_hz=min(clocks) * 1e6)


def _with_power(accelerator: Accelerator, path: Path, report: Mapping[str, Any]) -> Accelerator:
    technology = replace(accelerator.technology, pe_cycle=_pe_energy(path, report))
    pes = report["equal_power_pes"]  # None unless there are both baseline and max
    equal = accelerator.equal_power_pes if pes is None else _positive(path, "equal_power_pes", pes)
    return replace(accelerator, technology=technology, equal_power_pes=equal)


def _pe_energy(path: Path, report: Mapping[str, Any]) -> EnergyEntry:
    """Return the energy of a PE in a cycle."""
    designs = report["designs"]
    name = "baseline" if "baseline" in designs else next(iter(designs))
    chip, node, volts = designs[name], report.get("node_nm"), report.get("volts")
    if node is None or volts is None:
        raise OptionError(
            f"'{path}' does not give the process node of its cells; run adagp rtl power again, with --node for "
            "cells of your own."
        )
    modules = chip.get("modules")
    element = modules.get("element") if isinstance(modules, Mapping) else None
    watts = element.get("watts") if isinstance(element, Mapping) else None
    joules = _positive(path, f"watts of a PE of {name}", watts) / (
        _positive(path, f"megahertz of {name}", chip.get("megahertz")) * 1e6
    )
    scale = NODE / _positive(path, "node_nm", node) * (VOLTS / _positive(path, "volts", volts)) ** 2
    bits = re.search(r"\d+", str(report.get("format")))
    if bits is None:
        raise OptionError(f"'{path}': PEs of format {report.get('format')!r} multiply no words of a known width.")
    return EnergyEntry(
        "clock", "rtl", 0, NODE, int(bits[0]), joules * 1e12 * scale, 0.0, 0.0, f"adagp rtl power: {path}"
    )


def _positive(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise OptionError(f"'{path}': {name} is {value!r}; it must be a number above 0 and below 1,000,000.")
    return float(value)
