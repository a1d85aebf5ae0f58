"""Known accelerators by name: what their papers say of them as settings of the model; the rest keeps its default.

A preset has a chip's sizes, not its whole design: the energies are those of the table's process, and words of 8 bits are
what the chip multiplies, not a claim that a network trains in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from adagp.core.registry import Registry
from adagp.hw.accelerator import Accelerator
from adagp.hw.array import Array


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
