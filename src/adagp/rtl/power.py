"""Power and timing by OpenSTA: the gates of a Liberty file, with the activity that a simulation of real work gave them.

Banks are not in Liberty files: their power is left out, and they read and write without delay. Wires and the clock's tree are
left out as well, since nothing is placed. Each kind of block is analysed once and counted as often as it is there; timing is
that of the whole chip.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.errors import OptionError, ToolError
from adagp.rtl.activity import KindActivity, WrittenModule, instances, read_module, record_activity
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.chip import chip_modules
from adagp.rtl.compiler import Compiler
from adagp.rtl.gate_netlist import structural_verilog
from adagp.rtl.network import SmallNetwork, State, random_state
from adagp.rtl.simulation import VerilatedChip
from adagp.rtl.synthesis import Target, mapped_module
from adagp.rtl.tools import cached_folder, digest, open_sta, run, verilator
from adagp.rtl.training import run_batch

ANNOTATE = """
proc annotate {pin activity} {
  set found [get_pins $pin]
  if {[info commands ::sta::set_power_pin_activity] ne ""} {
    ::sta::set_power_pin_activity $found $activity 0.5
  } else {
    set_power_activity -pins $found -activity $activity -duty 0.5
  }
}
"""
"""OpenSTA 2.0 fails on the option -pins, but not on the internal command that the option calls."""


@dataclass(frozen=True)
class Watts:
    """Power of gates: inside them, of the loads that they switch, and by leaking."""

    internal: float
    switching: float
    leakage: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.internal + self.switching + self.leakage

    def times(self, count: int) -> "Watts":
        """Return the power of `count` blocks."""
        return Watts(self.internal * count, self.switching * count, self.leakage * count)


@dataclass(frozen=True)
class PowerReport:
    """A chip's power while it did some work at a clock of `megahertz`; `cycles` is how long it took, `slack` the time in
    nanoseconds that the longest path leaves in a cycle: negative if it is too long. `path` are the blocks where it begins and
    ends."""

    modules: Mapping[str, Watts]
    counts: Mapping[str, int]
    activities: Mapping[str, KindActivity]
    cycles: int
    megahertz: float
    slack: float
    path: tuple[str, str]

    @property
    def total(self) -> Watts:
        """The power of the whole chip."""
        modules = [watts.times(self.counts[kind]) for kind, watts in self.modules.items()]
        return Watts(*(sum(getattr(watts, name) for watts in modules) for name in ("internal", "switching", "leakage")))

    @property
    def joules(self) -> float:
        """The energy of the work."""
        return self.total.total * self.cycles / (self.megahertz * 1e6)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        total, period = self.total, 1e3 / self.megahertz
        return {
            "watts": total.total,
            "internal_watts": total.internal,
            "switching_watts": total.switching,
            "leakage_watts": total.leakage,
            "cycles": self.cycles,
            "joules": self.joules,
            "megahertz": self.megahertz,
            "timing_met": self.slack >= 0,
            "slack_ns": self.slack,
            "shortest_period_ns": period - self.slack,
            "longest_path": {"from": self.path[0], "to": self.path[1]},
            "modules": {
                kind: {
                    "count": self.counts[kind],
                    "watts": watts.total,
                    "changes_per_cycle": self.activities[kind].mean,
                    "recorded": self.activities[kind].blocks,
                }
                for kind, watts in self.modules.items()
            },
        }


def _phases(blueprint: Blueprint) -> tuple[str, str]:
    return ("bp", "bp") if blueprint.design == "baseline" else ("bp", "gp")


def check_power(blueprint: Blueprint, network: SmallNetwork, megahertz: float, dataflow: str) -> None:
    """Check that `measure_power` can be run, before anything is built."""
    if not 0 < megahertz < 1e6:
        raise OptionError(f"the clock is {megahertz:g} megahertz; it must be more than 0 and less than 1000000.")
    open_sta()
    if verilator() is None:
        raise ToolError("activity needs a simulation by Verilator; Verilator or g++ is not installed.")
    state = random_state(network, blueprint.core.single)
    for phase in _phases(blueprint):
        Compiler(blueprint, network, phase, dataflow).compile(state)


def measure_power(
    blueprint: Blueprint,
    target: Target,
    network: SmallNetwork,
    state: State,
    megahertz: float,
    dataflow: str = "ws",
    progress: Callable[[str], None] = lambda _: None,
) -> PowerReport:
    """Return the power of a chip that trains two batches: in Phase BP and Phase GP, or both by backprop in the baseline."""
    check_power(blueprint, network, megahertz, dataflow)

    def work(chip: VerilatedChip) -> None:
        now = state
        for phase in _phases(blueprint):
            now = run_batch(chip, network, now, phase, dataflow).state

    activities, cycles = record_activity(blueprint, target, work, progress)
    texts = chip_modules(blueprint)
    modules = {kind: read_module(text) for kind, text in texts.items()}
    netlists = {kind: structural_verilog(kind, mapped_module(texts, kind, target)) for kind in activities}
    watts = {}
    for kind, activity in activities.items():
        progress(f"power of {kind}")
        watts[kind] = _kind_power(netlists[kind], kind, target.library, activity, megahertz)
    progress("timing")
    slack, path = _chip_timing(netlists, modules, target.library, megahertz)
    counts = Counter({kind: len(paths) for kind, paths in instances(modules).items()})
    return PowerReport(watts, counts, activities, cycles, megahertz, slack, path)


def _kind_power(netlist: str, kind: str, library: str, activity: KindActivity, megahertz: float) -> Watts:
    if not activity.pins:
        return Watts(0.0, 0.0, 0.0)
    pins = "\n".join(f"annotate {{{cell}/{pin}}} {changes:.6g}" for (cell, pin), changes in activity.pins.items())
    text = _analysed({"block.v": netlist}, kind, library, megahertz, f"{ANNOTATE}\n{pins}\nreport_power -digits 9\n")
    match = re.search(r"^Total\s+(\S+)\s+(\S+)\s+(\S+)", text, re.MULTILINE)
    assert match is not None, text
    return Watts(*map(float, match.groups()))


def _chip_timing(
    netlists: Mapping[str, str], modules: Mapping[str, WrittenModule], library: str, megahertz: float
) -> tuple[float, tuple[str, str]]:
    """Return the slack of the chip's longest path, and the blocks where it begins and ends."""
    files = {f"{kind}.v": text for kind, text in netlists.items()}
    banks = {kind: module for kind, module in modules.items() if kind.startswith("bank_")}
    commands = "report_worst_slack\nreport_checks\n"
    text = _analysed(files | {"banks.lib": bank_library(banks)}, "chip", library, megahertz, commands)
    match = re.search(r"worst slack\s+(?:max\s+)?(\S+)", text)
    ends = re.search(r"^Startpoint: (\S+).*?^Endpoint: (\S+)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, text
    assert ends is not None, text
    # A gate's name comes behind its block's; a bank is a block.
    first, last = (re.sub(r"/_\w+$", "", end) for end in ends.groups())
    return float(match[1]), (first, last)


def _analysed(files: Mapping[str, str], top: str, library: str, megahertz: float, commands: str) -> str:
    """Return what OpenSTA prints about a design; from the cache if it ran before."""
    script = "\n".join(
        [
            *(f"read_liberty {name}" for name in ("cells.lib", *files) if name.endswith(".lib")),
            *(f"read_verilog {name}" for name in files if name.endswith(".v")),
            f"link_design {top}",
            f"create_clock -name clk -period {1e3 / megahertz:.6f} [get_ports clk]",
            commands,
            "exit",
        ]
    )

    def make(work: Path) -> None:
        for name, text in files.items():
            (work / name).write_text(text, encoding="utf-8")
        (work / "cells.lib").write_text(library, encoding="latin-1")
        (work / "script.tcl").write_text(script, encoding="utf-8")
        printed = run([open_sta(), "-exit", "script.tcl"], work)
        error = re.search(r"^Error: .*$", printed, re.MULTILINE)
        if error is not None:
            raise ToolError(f"OpenSTA cannot analyse {top}: {error[0]}")
        for path in work.iterdir():
            path.unlink()
        (work / "printed.txt").write_text(printed, encoding="utf-8")

    name = f"analysis-{digest(script, library, *files, *files.values())}"
    return (cached_folder(name, make) / "printed.txt").read_text(encoding="utf-8")


def bank_library(banks: Mapping[str, WrittenModule]) -> str:
    """Return a Liberty file of banks: their data come with the clock, and what is written must be there with it, without
    delays; no power."""
    widths = sorted({bits for module in banks.values() for _, bits in module.ports.values()})
    lines = [
        "library (banks) {",
        '  time_unit : "1ns";',
        "  capacitive_load_unit (1, pf);",
        "  delay_model : table_lookup;",
    ]
    lines += [f"  {way}_threshold_pct_{edge} : 50;" for way in ("input", "output") for edge in ("rise", "fall")]
    lines += [f"  slew_lower_threshold_pct_{edge} : 20;" for edge in ("rise", "fall")]
    lines += [f"  slew_upper_threshold_pct_{edge} : 80;" for edge in ("rise", "fall")]
    for bits in widths:
        body = f"base_type : array; data_type : bit; bit_width : {bits}; bit_from : {bits - 1}; bit_to : 0;"
        lines.append(f"  type (bits{bits}) {{ {body} }}")
    for kind, module in banks.items():
        lines += [f"  cell ({kind}) {{", "    pin (clk) { direction : input; clock : true; capacitance : 0; }"]
        lines += [_bank_port(name, direction, bits) for name, (direction, bits) in module.ports.items()]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _bank_port(name: str, direction: str, bits: int) -> str:
    """Return a bank's port in Liberty's language: nothing takes any time, but paths begin and end there."""
    group = f"bus ({name}) {{ bus_type : bits{bits};" if bits > 1 else f"pin ({name}) {{"
    capacitance = " capacitance : 0;" if direction == "input" else ""
    kind, delays = "setup_rising", ["rise_constraint", "fall_constraint"]
    if direction == "output":
        kind, delays = "rising_edge", ["cell_rise", "cell_fall", "rise_transition", "fall_transition"]
    values = " ".join(f'{delay} (scalar) {{ values ("0"); }}' for delay in delays)
    timing = f'timing () {{ related_pin : "clk"; timing_type : {kind}; {values} }}'
    return f"    {group} direction : {direction};{capacitance} {timing} }}"
