"""Hardware as a file: an accelerator's array, words, memories, vector unit and links in TOML.

    [array]
    size = "12x15"
    dataflow = "ws"

    [memory.buffer]
    size_kb = 512

Every field is optional; what a file leaves out keeps its default. `FIELDS` has them all: most set what an option of the command
line sets, in the same units. SCALE-Sim's and ZigZag's files are read as far as they have the same fields
(`foreign_hardware.py`). Errors name the file, the line and the field.

A preset is a known accelerator by name: a hardware file in the folder `chips`. It has a chip's sizes as its paper gives them,
not its whole design: the energies are those of the table's process, and words of 8 bits are what the chip multiplies, not a
claim that a network trains in them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from adagp.core.files import read_text
from adagp.core.options import Option
from adagp.core.registry import Registry
from adagp.errors import AdagpError, DataError, OptionError, unknown_name
from adagp.hw.accelerator import Accelerator
from adagp.hw.energy import EnergyEntry
from adagp.hw.settings import SETTINGS, accelerator_field, with_settings

SET_BY_OPTIONS: Mapping[str, str] = {
    "array.size": "array",
    "array.dataflow": "dataflow",
    "array.clock_mhz": "clock",
    "array.backward": "backward",
    "array.zero_insertion": "zero_insertion",
    "array.equal_power_pes": "equal_power_pes",
    "array.equal_area_pes": "equal_area_pes",
    "predictor.array": "predictor_array",
    "predictor.shape": "predictor",
    "words.bits": "word_bits",
    "words.weight_bits": "weight_bits",
    "words.activation_bits": "activation_bits",
    "words.gradient_bits": "gradient_bits",
    "words.sum_bits": "sum_bits",
    "memory.buffer.size_kb": "buffer",
    "memory.buffer.port_bits": "buffer_port",
    "memory.accumulator.size_kb": "accumulator",
    "memory.dram.bandwidth_gb_s": "bandwidth",
    "memory.dram.type": "dram",
    "vector.lanes": "vector_lanes",
    "execution.fusion": "fusion",
    "execution.fused_attention": "fused_attention",
    "execution.tiling": "tiling",
    "optimizer.kind": "optimizer",
    "optimizer.state_bits": "state_bits",
    "optimizer.master_bits": "master_bits",
    "energy.node_nm": "node",
    "energy.cell": "cell",
    "energy.table": "energy_table",
}
"""Fields that an option of the command line sets, too, by the name of its setting."""


_PICOJOULES = Option("", float, None, "Picojoules of an access of word_bits.", low=0, high=1e12)
_WORD = Option("", int, 64, "Bits of an access.", low=1, high=65_536)
OF_FILES_ONLY: Mapping[str, Option] = {
    "name": Option("", str, "", "What the chip is called."),
    "source": Option("", str, "", "Where the figures come from."),
    "memory.buffer.read_pj": _PICOJOULES,
    "memory.buffer.write_pj": _PICOJOULES,
    "memory.buffer.word_bits": _WORD,
    "memory.buffer.leakage_mw": Option("", float, None, "Milliwatts.", low=0, high=1e9),
    "memory.dram.read_pj": _PICOJOULES,
    "memory.dram.write_pj": _PICOJOULES,
    "memory.dram.word_bits": _WORD,
    "links.bandwidth_gb_s": Option(
        "", float, None, "Gigabytes per second of a link between chips.", above=0, infinite=True
    ),
    "links.latency_us": Option("", float, None, "Microseconds before the first byte arrives.", low=0, high=1e9),
}
FIELDS = (*OF_FILES_ONLY, *SET_BY_OPTIONS)
"""All fields of a file."""


@dataclass(frozen=True)
class Links:
    """Links between chips: gigabytes per second each way, microseconds before the first byte arrives; None: not given."""

    bandwidth_gb_s: float | None = None
    latency_us: float | None = None


@dataclass(frozen=True)
class Hardware:
    """The fields of a file, by their names; `origin` is the file."""

    origin: str
    fields: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def links(self) -> Links:
        """The links between chips, as far as the file states them."""
        return Links(
            **{name.removeprefix("links."): self.fields[name] for name in self.fields if name.startswith("links.")}
        )

    @property
    def sets(self) -> frozenset[str]:
        """The fields of `Accelerator` that the file sets."""
        return frozenset(accelerator_field(SET_BY_OPTIONS[name]) for name in self.fields if name in SET_BY_OPTIONS)

    def applied(self, accelerator: Accelerator) -> Accelerator:
        """Return `accelerator` with what the file sets."""
        settings = {SET_BY_OPTIONS[name]: value for name, value in self.fields.items() if name in SET_BY_OPTIONS}
        try:
            accelerator = with_settings(accelerator, settings)
            buffer, dram = (self._energies(level) for level in ("buffer", "dram"))
        except AdagpError as error:
            raise type(error)(f"{self.origin}: {error}") from None
        table = accelerator.technology
        stated = {"buffer_access": buffer or table.buffer_access, "dram_access": dram or table.dram_access}
        return replace(accelerator, technology=replace(table, **stated))  # type: ignore[arg-type]  # two fields of one type

    def with_field(self, name: str, value: Any) -> "Hardware":
        """Return the same with another value of a field, which is checked."""
        _check(name, value, name)
        return replace(self, fields={**self.fields, name: _as_declared(name, value)})

    def _energies(self, level: str) -> EnergyEntry | None:
        prefix = f"memory.{level}."
        parts = {part: self.fields.get(prefix + part) for part in ("read_pj", "write_pj", "word_bits", "leakage_mw")}
        if all(value is None for value in parts.values()):
            return None
        if parts["read_pj"] is None or parts["write_pj"] is None:
            given = next(name for name, value in parts.items() if value is not None)
            line = self.lines.get(prefix + given)
            where = f"line {line}: " if line else ""
            raise OptionError(f"{where}{prefix}{given} has no effect without {prefix}read_pj and {prefix}write_pj.")
        word, leakage = parts["word_bits"] or 64, parts["leakage_mw"] or 0.0
        return EnergyEntry(level, "", 0, 0, word, parts["read_pj"], parts["write_pj"], leakage, self.origin)


def read_hardware(path: Path) -> Hardware:
    """Return the hardware in a file: TOML (.toml), SCALE-Sim's configuration (.cfg) or ZigZag's accelerator (.yaml)."""
    if not path.is_file():
        raise DataError(f"there is no hardware file {path}.")
    text = read_text(path, "the hardware", DataError)
    if path.suffix in (".cfg", ".yaml", ".yml"):
        from adagp.hw.foreign_hardware import read_scale_sim, read_zigzag

        return (read_scale_sim if path.suffix == ".cfg" else read_zigzag)(str(path), text)
    return parse_hardware(str(path), text)


def parse_hardware(origin: str, text: str) -> Hardware:
    """Return the hardware that a TOML text describes."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{origin} is not a TOML file: {error}.") from None
    lines = dict(_lines(text))
    fields = dict(_flat(document))
    for name, value in fields.items():
        where = f"{origin}, line {_line_of(name, lines)}"
        if name not in FIELDS:
            raise OptionError(f"{where}: {unknown_name('field', name, FIELDS)}")
        try:
            _check(name, value, name)
        except AdagpError as error:
            raise OptionError(f"{where}: {error}") from None
    hardware = Hardware(origin, {name: _as_declared(name, value) for name, value in fields.items()}, lines)
    hardware.applied(Accelerator())  # raises for values that do not go together
    return hardware


def field_option(name: str) -> Option:
    """Return the declaration of a field's values; raise for an unknown field."""
    if name not in FIELDS:
        raise unknown_name("field", name, FIELDS)
    return OF_FILES_ONLY[name] if name in OF_FILES_ONLY else SETTINGS[SET_BY_OPTIONS[name]]


KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _check(name: str, value: Any, written: str) -> None:
    declared = field_option(name)
    whole = declared.kind is float and type(value) is int
    text = declared.kind not in KINDS and type(value) is str
    if not (type(value) is declared.kind or whole or text):
        raise OptionError(f"{written} is {value!r}; it must be {KINDS.get(declared.kind, 'text')}.")
    declared.check(value, written)


def _as_declared(name: str, value: Any) -> Any:
    return float(value) if field_option(name).kind is float else value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield tables and keys with their lines: the TOML parser of the standard library does not keep them."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = _plain(header[1]) + "."
            yield table[:-1], number
        elif key := re.match(r"\s*([A-Za-z0-9_\-.\"' ]+?)\s*=", line):
            yield table + _plain(key[1]), number


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _line_of(name: str, lines: Mapping[str, int]) -> int:
    """Return the line of a field, or that of the table in whose braces it stands."""
    while name and name not in lines:
        name = name.rpartition(".")[0]
    return lines.get(name, 1)


@dataclass(frozen=True)
class Preset:
    """A known accelerator: a hardware file of the package."""

    name: str

    @cached_property
    def hardware(self) -> Hardware:
        """The hardware that the file describes."""
        return parse_hardware(f"{self.name}.toml", (CHIPS / f"{self.name}.toml").read_text(encoding="utf-8"))

    @property
    def source(self) -> str:
        """Where the figures come from."""
        return str(self.hardware.fields["source"])


PRESETS: Registry[Preset] = Registry("preset")
CHIPS = files("adagp.hw") / "chips"
"""The folder of the presets' files."""
for _name in sorted(entry.name.removesuffix(".toml") for entry in CHIPS.iterdir() if entry.name.endswith(".toml")):
    PRESETS.add(_name, Preset(_name))


def with_preset(accelerator: Accelerator, name: str | None) -> Accelerator:
    """Return `accelerator` with the preset's settings."""
    return accelerator if name is None else PRESETS[name].hardware.applied(accelerator)
