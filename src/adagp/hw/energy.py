"""Energy: accesses and multiply-accumulates times a table of picojoules, each row with its source.

SRAM and DRAM figures are CACTI 7's, arithmetic is Horowitz's (45 nm only: it is used unscaled at smaller nodes). A
memory takes the smallest table entry that holds it; beyond the largest it is built of banks of that size, of which an
access wakes one. Registers inside the PEs and the wires of the array are left out.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from adagp.errors import OptionError
from adagp.hw.product import Cost


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


@dataclass(frozen=True)
class Technology:
    """Which rows of the table to use: process node in nanometres, SRAM cell, DRAM type, with or without the DRAM's pins."""

    node: int = 45
    cell: str = "lstp"
    dram: str = "ddr3"
    dram_io: bool = True

    def __post_init__(self) -> None:
        for part, name in (("sram", self.cell), ("dram", self.dram)):
            rows = [entry for entry in energy_table() if entry.part == part]
            if not any(entry.name == name and entry.node == self.node for entry in rows):
                known = sorted({f"{entry.name} at {entry.node} nm" for entry in rows})
                raise OptionError(
                    f"the energy table has no {part.upper()} '{name}' at {self.node} nm; it has {', '.join(known)}."
                )


@dataclass(frozen=True)
class Energy:
    """Joules by place. They add up."""

    arithmetic: float = 0.0
    buffer: float = 0.0
    predictor_memory: float = 0.0
    dram: float = 0.0
    leakage: float = 0.0

    @property
    def memory(self) -> float:
        """Joules of memory accesses: what the paper's energy figure shows."""
        return self.buffer + self.predictor_memory + self.dram

    @property
    def joules(self) -> float:
        """All joules."""
        return self.arithmetic + self.memory + self.leakage

    def __add__(self, other: "Energy") -> "Energy":
        return Energy(
            self.arithmetic + other.arithmetic,
            self.buffer + other.buffer,
            self.predictor_memory + other.predictor_memory,
            self.dram + other.dram,
            self.leakage + other.leakage,
        )


@dataclass(frozen=True)
class EnergyModel:
    """Picojoules a word for one accelerator; `predictor_kilobytes` is 0 where there is no predictor memory."""

    technology: Technology
    word_bits: int
    clock_hz: float
    buffer_kilobytes: float
    predictor_kilobytes: float = 0.0

    def energy(self, cost: Cost) -> Energy:
        """Return the joules of `cost`."""
        technology, pico = self.technology, 1e-12
        buffer = sram(technology, self.buffer_kilobytes)
        own = sram(technology, self.predictor_kilobytes)
        dram = find("dram", technology.dram, technology.node)
        pins = find("dram-io", technology.dram) if technology.dram_io else None
        share = self.word_bits / 64
        dram_joules = cost.dram_reads * dram.read + cost.dram_writes * dram.write
        if pins is not None:
            dram_joules += cost.dram_reads * pins.read + cost.dram_writes * pins.write
        leakage = buffer.leakage + (own.leakage if self.predictor_kilobytes else 0.0)
        return Energy(
            arithmetic=cost.macs * mac(self.word_bits).read * pico,
            buffer=share * pico * (cost.buffer_reads * buffer.read + cost.buffer_writes * buffer.write),
            predictor_memory=share * pico * (cost.own_reads * own.read + cost.own_writes * own.write),
            dram=share * pico * dram_joules,
            leakage=leakage * 1e-3 * cost.cycles / self.clock_hz,
        )


@cache
def energy_table() -> tuple[EnergyEntry, ...]:
    """Return the table that comes with the package."""
    text = (files("adagp.hw") / "energy_table.csv").read_text(encoding="utf-8")
    return tuple(
        EnergyEntry(
            row["part"],
            row["name"],
            int(row["kilobytes"] or 0),
            int(row["node_nm"] or 0),
            int(row["bits"]),
            float(row["read_pj"]),
            float(row["write_pj"] or 0),
            float(row["leakage_mw"] or 0),
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def find(part: str, name: str, node: int | None = None) -> EnergyEntry:
    """Return the one entry of a part."""
    return next(
        entry for entry in energy_table() if entry.part == part and entry.name == name and node in (None, entry.node)
    )


@cache
def sram(technology: Technology, kilobytes: float) -> EnergyEntry:
    """Return the entry for a memory of `kilobytes`, its leakage scaled to the number of banks."""
    sizes = [
        entry
        for entry in energy_table()
        if (entry.part, entry.name, entry.node) == ("sram", technology.cell, technology.node)
    ]
    fitting = [entry for entry in sizes if entry.kilobytes >= kilobytes]
    if fitting:
        return min(fitting, key=lambda entry: entry.kilobytes)
    largest = max(sizes, key=lambda entry: entry.kilobytes)
    banks = -(-kilobytes // largest.kilobytes)
    return EnergyEntry(
        **{**vars(largest), "kilobytes": int(banks * largest.kilobytes), "leakage": banks * largest.leakage}
    )


@cache
def mac(word_bits: int) -> EnergyEntry:
    """Return the entry of a multiply-accumulate of `word_bits`."""
    entries = {entry.bits: entry for entry in energy_table() if entry.part == "mac"}
    if word_bits not in entries:
        raise OptionError(f"word width {word_bits} is not in the energy table; choose from {sorted(entries)} bits.")
    return entries[word_bits]
