"""Settings of an accelerator as a user writes them: one row each in a table. The defaults are `Accelerator`'s own.

`simulate` takes them all as options, `sweep` and `pipeline` some of them; the axes of `explore` are some of them as well.

A preset is a known accelerator by name. It has a chip's sizes as its paper gives them, not its whole design: the energies are
those of the table's process, and words of 8 bits are what the chip multiplies, not a claim that a network trains in them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from adagp.core.options import Option
from adagp.core.registry import Registry
from adagp.hw.accelerator import BACKWARD, MOST_ENLARGED, Accelerator, parse_predictor
from adagp.hw.dataflows import Array, check_size, parse_array

PANEL = "Accelerator"
OPTIMIZER_WORDS = {"sgd": 0, "momentum": 1, "adam": 2}
"""Words of state that an optimizer keeps for each weight."""
_A_WORD = "those of a word"
_USUAL = Accelerator()


@dataclass(frozen=True)
class Setting:
    """An option, the field of `Accelerator` that it sets, and how a value of the one becomes a value of the other."""

    option: Option
    field: str
    read: Callable[[Any], Any]


def _setting(
    name: str,
    kind: type,
    text: str,
    field: str = "",
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    **more: Any,
) -> Setting:
    default = write(attrgetter(field or name)(_USUAL))
    option = Option(name, kind, default, text, optional=default is None, panel=PANEL, **more)
    return Setting(option, field or name, read)


def _scaled(factor: float) -> dict[str, Any]:
    """Return how a number is read whose unit on the command line is `factor` times the accelerator's."""
    return {"read": lambda value: value * factor, "write": lambda value: value / factor}


def _optimizer_named(words: int) -> str:
    return next(name for name, kept in OPTIMIZER_WORDS.items() if kept == words)


SETTINGS: Mapping[str, Setting] = {
    setting.option.name: setting
    for setting in (
        _setting("dataflow", str, "ws, os, is, rs, or a plugin's."),
        _setting("array", str, "PEs, ROWSxCOLUMNS.", read=parse_array, write=str, also=check_size),
        _setting(
            "predictor_array", str, "PEs of the predictor in design max.", read=parse_array, write=str, also=check_size
        ),
        _setting(
            "clock",
            float,
            "Megahertz.",
            "clock_hz",
            **_scaled(1e6),
            low=1e-3,
            high=1e6,
            allowed="0.001 to 1,000,000 megahertz",
        ),
        _setting("word_bits", int, "8, 16 or 32.", low=1),
        _setting(
            "buffer",
            float,
            "Global buffer in kilobytes.",
            "buffer_kilobytes",
            write=float,
            low=1e-3,
            high=1e9,
            allowed="0.001 to 1,000,000,000 kilobytes",
        ),
        _setting(
            "bandwidth",
            float,
            "Off-chip gigabytes per second; inf: never stalls.",
            **_scaled(1e9),
            low=1e-6,
            high=1e9,
            infinite=True,
            allowed="0.000001 to 1,000,000,000 (gigabytes), or inf",
        ),
        _setting(
            "predictor", str, "Predictor, GRIDxCHANNELS: pooled side, feature maps.", read=parse_predictor, write=str
        ),
        _setting(
            "backward",
            str,
            f"{BACKWARD[0]}: gradients run where the forward pass placed their matrices; {BACKWARD[1]}: as ordinary products.",
        ),
        _setting("weight_bits", int, "Bits of a weight.", low=1, unset=_A_WORD),
        _setting("activation_bits", int, "Bits of an activation.", low=1, unset=_A_WORD),
        _setting("gradient_bits", int, "Bits of a gradient.", low=1, unset=_A_WORD),
        _setting("sum_bits", int, "Bits of a partial sum.", low=1, unset="32, or those of a wider word"),
        _setting(
            "buffer_port", float, "Bits per cycle into and out of the buffer; inf: no limit.", above=0, infinite=True
        ),
        _setting(
            "accumulator",
            float,
            "Kilobytes for partial sums; 0: they are in the global buffer.",
            "accumulator_kilobytes",
            write=float,
            low=0,
            high=1e9,
        ),
        _setting("fusion", bool, "Fuse element-wise work with the layer before it."),
        _setting(
            "zero_insertion",
            bool,
            "Run gradients of strided convolutions over zeros.",
            flags=("--zero-insertion",),
            unset="off",
        ),
        _setting(
            "equal_power_pes",
            float,
            "PEs of design equal-power over the array's: the paper's, or those of `adagp rtl power`.",
            low=1,
            high=MOST_ENLARGED,
        ),
        _setting(
            "equal_area_pes",
            float,
            "PEs of design equal-area over the array's: the paper's, or those of `adagp rtl synthesize`.",
            low=1,
            high=MOST_ENLARGED,
        ),
        _setting(
            "optimizer",
            str,
            "Whose state moves off-chip: sgd, momentum or adam.",
            "optimizer_words",
            read=OPTIMIZER_WORDS.__getitem__,
            write=_optimizer_named,
            choices=tuple(OPTIMIZER_WORDS),
        ),
        _setting("node", int, "Energy table: nanometres.", "technology.node", low=1),
        _setting("cell", str, "Energy table: SRAM cells, hp or lstp.", "technology.cell"),
        _setting("dram", str, "Energy table: ddr3 or ddr4.", "technology.dram"),
        _setting(
            "energy_table", Path, "An energy table of your own (CSV).", "technology.table", read=str, unset="adagp's"
        ),
    )
}
"""Every setting by the name of its option."""


def setting_options(*names: str) -> tuple[Option, ...]:
    """Return the options of the named settings; of all, if none is named."""
    return tuple(SETTINGS[name].option for name in names or SETTINGS)


def with_settings(accelerator: Accelerator, given: Mapping[str, Any]) -> Accelerator:
    """Return `accelerator` with the settings that are `given` by the names of their options, as a user writes them."""
    fields = {SETTINGS[name].field: SETTINGS[name].read(value) for name, value in given.items()}
    own = {name: value for name, value in fields.items() if "." not in name}
    below = {name.partition(".")[2]: value for name, value in fields.items() if "." in name}
    return replace(accelerator, **own, technology=replace(accelerator.technology, **below))


@dataclass(frozen=True)
class Preset:
    """Fields of an `Accelerator` by name, and where the figures come from."""

    settings: Mapping[str, Any]
    source: str


PRESETS: Registry[Preset] = Registry("preset")
PRESETS.add(
    "eyeriss",
    Preset(
        {
            "array": Array(12, 14),
            "dataflow": "rs",
            "buffer_kilobytes": 108.0,
            "clock_hz": 200e6,
            "word_bits": 16,
            "bandwidth": 0.48e9,
        },
        "Chen et al., JSSC 2017: 168 PEs, 108 kB, 200 MHz; a 64-bit link at 60 MHz",
    ),
)
PRESETS.add(
    "tpu-v1",
    Preset(
        {
            "array": Array(256, 256),
            "dataflow": "ws",
            "buffer_kilobytes": 24.0 * 1024,
            "clock_hz": 700e6,
            "word_bits": 8,
            "bandwidth": 34e9,
        },
        "Jouppi et al., ISCA 2017: 256x256 8-bit multipliers, 24 MiB unified buffer, 700 MHz, 34 GB/s",
    ),
)
PRESETS.add(
    "gemmini",
    Preset(
        {
            "array": Array(16, 16),
            "dataflow": "ws",
            "buffer_kilobytes": 256.0,
            "clock_hz": 1e9,
            "word_bits": 8,
            "bandwidth": 16e9,
        },
        "Genc et al., DAC 2021: the default 16x16 array of 8-bit words, 256 KiB scratchpad, 1 GHz; a bus of 16 bytes per cycle",
    ),
)
PRESETS.add(
    "edge",
    Preset(
        {
            "array": Array(8, 8),
            "dataflow": "ws",
            "buffer_kilobytes": 128.0,
            "clock_hz": 200e6,
            "word_bits": 16,
            "bandwidth": 3.2e9,
        },
        "no chip: a small array with one 32-bit channel of 800 MT/s",
    ),
)


def with_preset(accelerator: Accelerator, name: str | None) -> Accelerator:
    """Return `accelerator` with the preset's settings."""
    return accelerator if name is None else replace(accelerator, **PRESETS[name].settings)
