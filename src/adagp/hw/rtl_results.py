"""What chips of our own say about the accelerator: the clock of `adagp rtl place`, equal power of `adagp rtl power`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adagp.core.files import read_text
from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator


def with_rtl(accelerator: Accelerator, path: Path | None) -> Accelerator:
    """Return `accelerator` with what the file of `adagp rtl place --json` or `adagp rtl power --json` has measured.

    All designs run at one clock: that of the slowest in the file.
    """
    return accelerator if path is None else replace(accelerator, **_measured(path))


def _measured(path: Path) -> dict[str, Any]:
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
    if "equal_power_pes" in report:
        if report["equal_power_pes"] is None:
            raise OptionError(f"'{path}' has no equal_power_pes, which needs designs baseline and max (--design all).")
        return {"equal_power_pes": _positive(path, "equal_power_pes", report["equal_power_pes"])}
    clocks = [_positive(path, f"megahertz of {name}", chip.get("megahertz")) for name, chip in designs.items()]
    return {"clock_hz": min(clocks) * 1e6}


def _positive(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise OptionError(f"'{path}': {name} is {value!r}; it must be a number above 0 and below 1,000,000.")
    return float(value)
