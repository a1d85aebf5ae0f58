"""Hardware files of other simulators, as far as adagp models them: SCALE-Sim's configurations, ZigZag's accelerators.

SCALE-Sim: `ArrayHeight`, `ArrayWidth`, `Dataflow`; the three memories of `[architecture_presets]` become one buffer;
`Bandwidth` (words per cycle), if `InterfaceBandwidth` is `USER`. With `CALC` the memory never stalls the array.

ZigZag: the two `sizes` of `operational_array`; the memory named `dram` gives bits per cycle and energies, the largest other
memory that all operands share the buffer. Both count in cycles: seconds are those of our default clock.
"""

from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigurationError
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import Any

from adagp.errors import DataError, OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.hardware_file import Hardware

_USUAL = Accelerator()
SRAMS = ("IfmapSramSzkB", "FilterSramSzkB", "OfmapSramSzkB")


def read_scale_sim(origin: str, text: str) -> Hardware:
    """Return the hardware of a SCALE-Sim configuration."""
    parser = ConfigParser()
    try:
        parser.read_string(text)
        chip, run = parser["architecture_presets"], parser["run_presets"]
        rows, columns = (_whole(origin, chip, name) for name in ("ArrayHeight", "ArrayWidth"))
        kilobytes = sum(_whole(origin, chip, name) for name in SRAMS)
        interface = run.get("InterfaceBandwidth", "CALC").strip().upper()
        words = _whole(origin, chip, "Bandwidth") if interface == "USER" else inf
        dataflow = chip["Dataflow"].strip().lower()
    except ConfigurationError as error:
        raise DataError(f"{origin} is not a configuration of SCALE-Sim: {' '.join(str(error).split())}.") from None
    except KeyError as error:
        raise DataError(f"{origin} is not a configuration of SCALE-Sim: {error} is missing.") from None
    return _checked(
        origin,
        {
            "array.size": f"{rows}x{columns}",
            "array.dataflow": dataflow,
            "memory.buffer.size_kb": float(kilobytes),
            "memory.dram.bandwidth_gb_s": _gigabytes(words * _USUAL.word_bits),
        },
    )


def _whole(origin: str, section: Mapping[str, str], name: str) -> int:
    value = section[name].strip()
    if not value.isdigit():
        raise OptionError(f"{origin}: {name} is '{value}'; it must be a whole number.")
    return int(value)


def _gigabytes(bits_per_cycle: float) -> float:
    return bits_per_cycle * _USUAL.clock_hz / 8e9


def _checked(origin: str, fields: Mapping[str, Any]) -> Hardware:
    hardware = Hardware(origin, {})
    for name, value in fields.items():
        try:
            hardware = hardware.with_field(name, value)
        except OptionError as error:
            raise OptionError(f"{origin}: {error}") from None
    hardware.applied(_USUAL)  # raises for values that do not go together
    return hardware


def read_zigzag(origin: str, text: str) -> Hardware:
    """Return the hardware of an accelerator file of ZigZag."""
    if find_spec("yaml") is None:
        raise OptionError("ZigZag's files need PyYAML, which is not installed: pip install pyyaml.")
    yaml = import_module("yaml")
    try:
        document = yaml.safe_load(text)
        array, memories = document["operational_array"], document["memories"]
        sizes = [int(size) for size in array["sizes"]]
        dram = memories["dram"]
        shared = [memory for name, memory in memories.items() if name != "dram" and len(memory["operands"]) == 3]
        fields: dict[str, Any] = {"memory.dram.bandwidth_gb_s": _gigabytes(_port(dram))}
        fields |= _accesses("dram", dram)
        if shared:
            buffer = max(shared, key=lambda memory: memory["size"])
            fields["memory.buffer.size_kb"] = buffer["size"] / 8192
            fields |= {"memory.buffer.port_bits": float(_port(buffer)), **_accesses("buffer", buffer)}
    except yaml.YAMLError as error:
        raise DataError(f"{origin} is not a YAML file: {' '.join(str(error).split())}.") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"{origin} is not an accelerator of ZigZag: {type(error).__name__}: {error}.") from None
    if len(sizes) != 2:
        raise OptionError(f"{origin}: its array has {len(sizes)} dimensions; only arrays of two are modelled.")
    return _checked(origin, {"array.size": f"{sizes[0]}x{sizes[1]}", **fields})


def _port(memory: Mapping[str, Any]) -> int:
    """Return the bits per cycle of a memory's widest port."""
    return max(int(port["bandwidth_max"]) for port in memory["ports"])


def _accesses(level: str, memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return picojoules of an access, which in ZigZag is one of the whole port."""
    costs = {"read_pj": float(memory["r_cost"]), "write_pj": float(memory["w_cost"]), "word_bits": _port(memory)}
    return {f"memory.{level}.{name}": value for name, value in costs.items()}
