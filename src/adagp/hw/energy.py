"""Energy: accesses and multiply-accumulates times a table of picojoules, each row with its source.

SRAM and DDR figures are CACTI 7's, arithmetic is Horowitz's (45 nm only: it is used unscaled at smaller nodes). The rest of a
PE's energy depends on the array. In a systolic one it is measured on the gates of our own chip (`adagp rtl power`), scaled to
45 nm. In a row-stationary one, or one of a plugin, the energies of a register and of a step to the next PE are taken from
Eyeriss' ratios to a multiply-accumulate (ISCA 2016), and the clock is an assumption. A memory takes the smallest table entry
that holds it. One larger than all entries is built of banks of the largest size, and an access activates one bank.

Another table of the same columns may take the place of the one that comes with the package (`Technology.table`): a row for each
action, as CACTI or Accelergy give them.
"""

import csv
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from adagp.core.files import read_text
from adagp.errors import DataError, OptionError
from adagp.hw.product import AccessEnergies, Cost


@dataclass(frozen=True)
class EnergyEntry:
    """One row of the table; energies in picojoules for an access of `bits`, leakage in milliwatts."""

    part: str
    name: str
    kilobytes: int
    node: int
    bits: int
    read: float
    write: float
    leakage: float
    source: str

    def joules(self, read: int, written: int = 0) -> float:
        """Return the joules of reading and writing these bits."""
        return (read * self.read + written * self.write) / self.bits * 1e-12


ANY_NODE = 0
"""The node of a row that holds for a chip of any node: that of a memory which is a chip of its own."""


@dataclass(frozen=True)
class Technology:
    """Which rows of the table to use: process node in nanometres, SRAM cell, DRAM type, with or without the DRAM's pins.

    `table` is the path of a table of your own. If given, `buffer_access` and `dram_access` replace its rows for the global
    buffer and for the off-chip memory with its pins, and `pe_cycle`, the whole energy of a PE in a cycle as measured on a chip,
    replaces arithmetic, registers, network and clock.
    """

    node: int = 45
    cell: str = "lstp"
    dram: str = "ddr3"
    dram_io: bool = True
    table: str | None = None
    buffer_access: EnergyEntry | None = None
    dram_access: EnergyEntry | None = None
    pe_cycle: EnergyEntry | None = None

    def __post_init__(self) -> None:
        for part, name in (("sram", self.cell), ("dram", self.dram)):
            rows = [entry for entry in energy_table(self.table) if entry.part == part]
            if not any(entry.name == name and entry.node in (ANY_NODE, self.node) for entry in rows):
                known = sorted({f"{entry.name} at {entry.node or 'any'} nm" for entry in rows})
                raise OptionError(
                    f"the energy table has no {part.upper()} '{name}' at {self.node} nm; it has {', '.join(known)}."
                )


@dataclass(frozen=True)
class Energy:
    """Joules by level. They add up."""

    arithmetic: float = 0.0
    registers: float = 0.0
    network: float = 0.0
    buffer: float = 0.0
    predictor_memory: float = 0.0
    dram: float = 0.0
    clock: float = 0.0
    leakage: float = 0.0

    @property
    def memory(self) -> float:
        """Joules of memory accesses: what the paper's energy figure shows."""
        return self.buffer + self.predictor_memory + self.dram

    @property
    def joules(self) -> float:
        """All joules."""
        return sum(self.by_level.values())

    @property
    def on_chip(self) -> float:
        """All joules but those of the off-chip memory."""
        return self.joules - self.dram

    @property
    def by_level(self) -> dict[str, float]:
        """Joules by the name of their level."""
        return {level.name: getattr(self, level.name) for level in fields(self)}

    def __add__(self, other: "Energy") -> "Energy":
        return Energy(**{name: joules + getattr(other, name) for name, joules in self.by_level.items()})


@dataclass(frozen=True)
class EnergyModel:
    """Picojoules of each action for one accelerator; `predictor_kilobytes` is 0 without a predictor memory.

    `pes` are the PEs that are clocked as long as the work takes. `operation_picojoules` is the energy of a multiply-accumulate
    that is not in the table. `array_kind` names the table's rows of the PEs' registers, network and clock: `systolic` or `pe`.
    """

    technology: Technology
    multiplier_bits: int
    clock_hz: float
    buffer_kilobytes: float
    predictor_kilobytes: float = 0.0
    pes: int = 0
    operation_picojoules: float | None = None
    array_kind: str = "pe"

    @property
    def access_energies(self) -> AccessEnergies:
        """What depends on a product's tiling, for a design without a predictor memory."""
        return AccessEnergies(*(self.energy(Cost(**{action: 1})).joules * 1e12 for action in TILED_ACTIONS))

    def energy(self, cost: Cost) -> Energy:
        """Return the joules of `cost`."""
        technology = self.technology
        buffer = technology.buffer_access or sram(technology, self.buffer_kilobytes)
        predictor_memory = sram(technology, self.predictor_kilobytes)
        dram = technology.dram_access or find(technology, "dram", technology.dram, technology.node)
        has_pins = technology.dram_io and technology.dram_access is None
        pins = find(technology, "dram-io", technology.dram) if has_pins else None
        off_chip = dram.joules(cost.dram_reads, cost.dram_writes)
        if pins is not None:
            off_chip += pins.joules(cost.dram_reads, cost.dram_writes)
        leakage = buffer.leakage + (predictor_memory.leakage if self.predictor_kilobytes else 0.0)
        return self._pe_energy(cost) + Energy(
            buffer=buffer.joules(cost.buffer_reads, cost.buffer_writes),
            predictor_memory=predictor_memory.joules(cost.own_reads, cost.own_writes),
            dram=off_chip,
            leakage=leakage * 1e-3 * cost.cycles / self.clock_hz,
        )

    def _pe_energy(self, cost: Cost) -> Energy:
        """Return the joules of the PEs."""
        technology, pico = self.technology, 1e-12
        if technology.pe_cycle is not None:
            return Energy(clock=cost.cycles * self.pes * technology.pe_cycle.read * pico)
        register, hop, clock = (
            array_entry(technology, part, self.array_kind, self.multiplier_bits)
            for part in ("register", "network", "clock")
        )
        operation = self.operation_picojoules
        if operation is None:
            operation = mac(technology, self.multiplier_bits).read
        return Energy(
            arithmetic=cost.macs * operation * pico,
            registers=register.joules(cost.registers),
            network=hop.joules(cost.network),
            clock=cost.cycles * self.pes * clock.read * pico,
        )


TILED_ACTIONS = ("dram_reads", "dram_writes", "buffer_reads", "buffer_writes", "cycles")
"""The parts of a cost that depend on a product's tiling, in the order of `AccessEnergies`."""
LARGEST = 10**12
"""Picojoules, milliwatts, bits and kilobytes at most."""
PARTS = ("sram", "dram", "mac", "register", "network", "clock")
"""What a table must have."""


@cache
def energy_table(path: str | None = None) -> tuple[EnergyEntry, ...]:
    """Return the table at `path`, or the one that comes with the package."""
    if path is None:
        text = (files("adagp.hw") / "energy_table.csv").read_text(encoding="utf-8")
    elif not Path(path).is_file():
        raise DataError(f"there is no energy table {path}.")
    else:
        text = read_text(Path(path), "the energy table", DataError)
    try:
        entries = tuple(map(_entry, csv.DictReader(text.splitlines())))
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} is not an energy table: {error}; its columns are part, name, kilobytes, node_nm, bits, read_pj, write_pj, "
            "leakage_mw and source, as in adagp/hw/energy_table.csv."
        ) from None
    missing = [part for part in PARTS if not any(entry.part == part for entry in entries)]
    if missing:
        raise DataError(f"the energy table {path} has no row for {', '.join(missing)}.")
    return entries


def _entry(row: dict[str, str]) -> EnergyEntry:
    return EnergyEntry(
        row["part"],
        row["name"],
        int(_number(row, "kilobytes", 1 if row["part"] == "sram" else 0, whole=True)),
        int(_number(row, "node_nm", 0, whole=True)),
        int(_number(row, "bits", 1, whole=True)),
        _number(row, "read_pj"),
        _number(row, "write_pj"),
        _number(row, "leakage_mw"),
        row["source"],
    )


def _number(row: dict[str, str], name: str, least: int = 0, *, whole: bool = False) -> float:
    """Return a number of a row; an empty one is 0."""
    value = float(row[name] or 0)
    if not least <= value <= LARGEST or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} of a {row['part']} is {row[name]}; it must be {kind} from {least} to {LARGEST:g}")
    return value


@cache
def find(technology: Technology, part: str, name: str, node: int | None = None) -> EnergyEntry:
    """Return the one entry of a part; a table of your own may leave a DRAM's pins out."""
    rows = (entry for entry in energy_table(technology.table) if entry.part == part and entry.name == name)
    entry = next((row for row in rows if row.node == ANY_NODE or node in (None, row.node)), None)
    if entry is None and part != "dram-io":
        raise DataError(f"the energy table has no row for {part} '{name}'.")
    return entry or EnergyEntry(part, name, 0, 0, 64, 0.0, 0.0, 0.0, "not in the table")


@cache
def array_entry(technology: Technology, part: str, kind: str, bits: int) -> EnergyEntry:
    """Return the entry of a part of the PEs: that of the narrowest words that hold `bits`, or of the widest.

    A table that has no row for this kind of array has one for PEs of any kind.
    """
    rows = [row for row in energy_table(technology.table) if (row.part, row.name) == (part, kind)]
    if not rows:
        return find(technology, part, "pe")
    return min(rows, key=lambda row: (row.bits < bits, row.bits if row.bits >= bits else -row.bits))


@cache
def sram(technology: Technology, kilobytes: float) -> EnergyEntry:
    """Return the entry for a memory of `kilobytes`, its leakage scaled to the number of banks."""
    sizes = [
        entry
        for entry in energy_table(technology.table)
        if (entry.part, entry.name, entry.node) == ("sram", technology.cell, technology.node)
    ]
    fitting = [entry for entry in sizes if entry.kilobytes >= kilobytes]
    if fitting:
        return min(fitting, key=lambda entry: entry.kilobytes)
    largest = max(sizes, key=lambda entry: entry.kilobytes)
    banks = -(-kilobytes // largest.kilobytes)
    return replace(largest, kilobytes=int(banks * largest.kilobytes), leakage=banks * largest.leakage)


@cache
def mac(technology: Technology, bits: int) -> EnergyEntry:
    """Return the entry of a multiply-accumulate of `bits`."""
    entries = {entry.bits: entry for entry in energy_table(technology.table) if entry.part == "mac"}
    if bits not in entries:
        raise OptionError(f"word width {bits} is not in the energy table; choose from {sorted(entries)} bits.")
    return entries[bits]
