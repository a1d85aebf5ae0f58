"""What every command checks before it begins: numbers within their ranges, outputs where they can be written."""

import os
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from adagp.errors import OptionError
from adagp.files import check_output_file, check_output_folder
from adagp.options import Option

MOST_THREADS = max(64, os.cpu_count() or 1)
"""More than this many threads gain nothing, and some systems cannot even start them."""
MOST_PES = 1_000_000
"""Processing elements of an array: every shape that an array of that size can have is tried."""


def _range(name: str, kind: type, **bounds: Any) -> Option:
    return Option(name, kind, None, "", optional=True, **bounds)


_COUNTED = "1 to 100,000, since they are counted one by one"
RANGES: Mapping[str, Option] = {
    option.name: option
    for option in (
        _range("epochs", int, low=1, high=100_000, allowed=_COUNTED),
        _range("samples", int, low=1),
        _range("batch", int, low=1),
        _range("warmup", int, low=0),
        _range("width", float, above=0, high=1000),
        _range("classes", int, low=2, high=1_000_000, allowed="2 to 1,000,000"),
        _range("channels", int, low=1, high=65_536),
        _range("image_size", int, low=1, high=65_536),
        _range("clock", float, low=1e-3, high=1e6, allowed="0.001 to 1,000,000 megahertz"),
        _range("buffer", float, low=1e-3, high=1e9, allowed="0.001 to 1,000,000,000 kilobytes"),
        _range(
            "bandwidth",
            float,
            low=1e-6,
            high=1e9,
            infinite=True,
            allowed="0.000001 to 1,000,000,000 (gigabytes), or inf",
        ),
        _range("latency", float, low=0, high=1e9),
        _range("buffer_port", float, above=0, infinite=True),
        _range("accumulator", float, low=0, high=1e9),
        _range("word_bits", int, low=1),
        _range("weight_bits", int, low=1),
        _range("activation_bits", int, low=1),
        _range("gradient_bits", int, low=1),
        _range("sum_bits", int, low=1),
        _range("node", int, low=1),
        _range("devices", int, low=1, high=4096),
        _range("micro_batches", int, low=1),
        _range("forward", float, low=0, high=1e12),
        _range("backward", float, low=0, high=1e12),
        _range("alpha", float, low=0, high=1e12),
        _range("threads", int, low=1, high=MOST_THREADS),
        _range("checkpoint_seconds", float, low=0),
        _range("timeout", float, low=1, high=86_400, allowed="1 to 86400 seconds"),
        _range("jobs", int, low=1, high=1000),
        _range("workers", int, low=1, high=256, allowed="from 1 to 256"),
        _range("seeds", int, low=1, high=10_000),
        _range("tune_batches", int, low=1),
        _range("tune_seeds", int, low=1, high=10_000),
        _range("seconds", float, above=0, high=1e9),
        _range("target", float),
        _range("large_batch", int, low=0),
        _range("points", int, low=1, high=100_000),
        _range("aligned_seeds", int, low=0, high=10_000),
        _range("rounds", int, low=1, high=100_000),
    )
}
"""The range of every number that a command takes by hand, by the name of its parameter."""

OUTPUTS: Mapping[tuple[str, str], Callable[[Path], None]] = {
    ("sweep", "out"): check_output_file,
    ("simulate", "save_workload"): check_output_file,
    ("simulate", "layers_csv"): check_output_file,
    ("plot", "out"): check_output_folder,
    ("compare", "out"): check_output_folder,
    ("demo", "out"): check_output_folder,
    ("reproduce", "out"): check_output_folder,
}
"""What is written, by command and parameter; pictures and the report have checks of their own."""


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with its values checked before it begins."""

    @wraps(command)
    def run(**values: Any) -> None:
        for name, value in values.items():
            check_value(command.__name__, name, value)
        command(**values)

    return run


def check_value(command: str, name: str, value: Any) -> None:
    """Refuse a value that `command` could not work with."""
    if value is None:
        return
    if name in RANGES and isinstance(value, int | float):
        RANGES[name].check(value)
    if (command, name) in OUTPUTS:
        OUTPUTS[command, name](value)
    if name in ("array", "arrays", "predictor_array"):
        _check_arrays(value)


def _check_arrays(text: str) -> None:
    for rows, columns in re.findall(r"(\d+)x(\d+)", text):
        if len(rows) + len(columns) > 14 or int(rows) * int(columns) > MOST_PES:
            raise OptionError(f"array {rows}x{columns} is not allowed: it has more than {MOST_PES:,} PEs.")
