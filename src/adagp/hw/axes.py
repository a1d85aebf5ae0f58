"""The axes of a design space: one row each in a table. A new axis is a line there.

Values are written as a list (`ws,os`), a range that doubles (`64..512`), or one with a step (`8..64:+8`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from adagp.errors import OptionError
from adagp.hw.dataflows import DATAFLOWS, Array
from adagp.hw.hardware_file import field_option
from adagp.hw.settings import SETTINGS, accelerator_field
from adagp.hw.simulate import parse_designs

MOST_POINTS = 100_000
"""Points of a design space, and values of one axis."""


@dataclass(frozen=True)
class Axis:
    """One direction of the design space.

    Its name is that of a setting of the accelerator, or `batch` or `design`. `column` names it, with its unit, in tables, where
    values are those of the accelerator divided by `scale`. `parse` reads the values that a user wrote. `default` None leaves
    the accelerator as it is. `about` is appended to the setting's own help. `written` is the option's flag, if it is not the
    name, and `short` a second flag.
    """

    name: str
    column: str
    parse: Callable[[str, str], list[Any]]
    default: str | None = None
    scale: float = 1.0
    about: str = ""
    written: str = ""
    short: str = ""

    @property
    def field(self) -> str:
        """The field of `Accelerator` that it sets, if it is a setting."""
        return accelerator_field(self.name)

    @property
    def help(self) -> str:
        """The line of help of its option."""
        setting_help = SETTINGS[self.name].help if self.name in SETTINGS else ""
        return " ".join(text for text in (setting_help, self.about) if text)

    @property
    def flag(self) -> str:
        """The option as it is written on a command line."""
        return self.written or "--" + self.name.replace("_", "-")

    def values(self, text: str) -> list[Any]:
        """Return the values that `text` names, each once."""
        return list(dict.fromkeys(self.parse(self.flag, text)))


def _numbers(low: float, high: float, whole: bool = False, factor: float = 1.0) -> Callable[[str, str], list[Any]]:
    """Return a parser of numbers from `low` to `high`; the accelerator's value is `factor` times the written one."""

    def parse(flag: str, text: str) -> list[Any]:
        def read(word: str) -> float:
            if re.fullmatch(r"\d+" if whole else r"\d+(\.\d+)?", word) is None:
                raise _unreadable(flag, word, "a whole number" if whole else "a number")
            return _in_bounds(flag, word, float(word), low, high)

        values = [value for part in _parts(flag, text) for value in _expand(flag, part, read)]
        return [int(value) if whole else value * factor for value in values]

    return parse


def _kilobytes(flag: str, text: str) -> list[float]:
    def read(word: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kM]?)", word)
        if match is None:
            raise _unreadable(flag, word, "kilobytes, for example 64k or 4M")
        kilobytes = float(match[1]) * (1024 if match[2] == "M" else 1)
        return _in_bounds(flag, word, kilobytes, 1, 1 << 20, "kilobytes")

    return [value for part in _parts(flag, text) for value in _expand(flag, part, read)]


def _arrays(flag: str, text: str) -> list[Array]:
    """Rows and columns run through their ranges independently."""
    arrays: list[Array] = []
    for part in _parts(flag, text):
        ends, colon, step = part.partition(":")
        sides: list[list[str]] = []
        for end in ends.split(".."):
            match = re.fullmatch(r"(\d+)x(\d+)", end)
            if match is None:
                raise _unreadable(flag, end, "ROWSxCOLUMNS, for example 8x8..64x64")
            sides.append([match[1], match[2]])

        def read(word: str) -> float:
            return _in_bounds(flag, word, float(word), 1, 4096, "PEs a side")

        rows, columns = ([*_expand(flag, "..".join(side) + colon + step, read)] for side in zip(*sides, strict=True))
        if len(rows) * len(columns) > MOST_POINTS:
            raise _too_many(f"{flag} {part}", len(rows) * len(columns))
        arrays += [Array(int(row), int(column)) for row in rows for column in columns]
    return arrays


def _dataflows(flag: str, text: str) -> list[str]:
    names = list(_parts(flag, text))
    for name in names:
        DATAFLOWS[name]
    return names


def _designs(flag: str, text: str) -> list[str]:
    return list(parse_designs(",".join(_parts(flag, text))))


AXES: tuple[Axis, ...] = (
    Axis("array", "array", _arrays, "8x8..64x64"),
    Axis("buffer", "buffer_kb", _kilobytes, "64k..4M", about="Written as 64k or 4M."),
    Axis("bandwidth", "gb_per_s", _numbers(0.001, 1e5, factor=1e9), scale=1e9),
    Axis("clock", "mhz", _numbers(1, 1e5, factor=1e6), scale=1e6),
    Axis("word_bits", "word_bits", _numbers(8, 32, whole=True)),
    Axis("buffer_port", "port_bits", _numbers(1, 1 << 20, whole=True), short="--port"),
    Axis("dataflow", "dataflow", _dataflows, "ws,os,is,rs"),
    Axis(
        "batch",
        "batch",
        _numbers(1, 1 << 20, whole=True),
        "128",
        about="Samples per batch.",
        written="--batch-size",
        short="--batch",
    ),
    Axis("design", "design", _designs, "all", about="Designs, or all."),
)


def parse_axes(texts: Mapping[str, str | None]) -> dict[str, list[Any]]:
    """Return the values of each axis that `texts` names; raise for a space of too many points."""
    values = {axis.name: axis.values(text) for axis in AXES if (text := texts.get(axis.name)) is not None}
    points = prod(map(len, values.values()))
    if points > MOST_POINTS:
        raise _too_many("the design space", points)
    return values


def parse_variations(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of fields of a hardware file, each written as FIELD=VALUES."""
    variations: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign:
            raise OptionError(f"--vary: cannot read '{text}'; write FIELD=VALUES, for example vector.lanes=16..256.")
        if name in variations:
            raise OptionError(f"--vary {name} is given twice.")
        variations[name] = list(dict.fromkeys(_field_values(name, values)))
    return variations


def _field_values(name: str, text: str) -> list[Any]:
    """Return the values of one field: ranges of numbers, lists of anything else."""
    flag, kind = f"--vary {name}", field_option(name).kind
    if kind in (int, float):
        return _numbers(0, 1e12, whole=kind is int)(flag, text)
    if name in ARRAY_FIELDS:
        return [str(array) for array in _arrays(flag, text)]
    words = _parts(flag, text)
    if kind is bool and set(words) - {"true", "false"}:
        raise _unreadable(flag, text, "true, false or both")
    return [word == "true" for word in words] if kind is bool else list(words)


ARRAY_FIELDS = ("array.size", "predictor.array")


def _parts(flag: str, text: str) -> Sequence[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise OptionError(f"{flag} is empty; give at least one value.")
    return parts


def _expand(flag: str, part: str, read: Callable[[str], float]) -> Iterator[float]:
    """Yield the values of one part of a list: a single one, or a range."""
    ends, colon, step = part.partition(":")
    words = ends.split("..")
    if len(words) > 2 or (colon and len(words) != 2):
        raise _unreadable(flag, part, "a value, a range A..B that doubles, or A..B:+STEP")
    first, last = read(words[0]), read(words[-1])
    if first > last:
        raise OptionError(f"{flag} {ends} runs backwards; write the smaller value first.")
    added = _read_step(flag, part, step, last - first) if colon else 0.0
    value, count = first, 0
    while value <= last * (1 + 1e-9):
        yield value
        count += 1
        value = first + count * added if added else first * 2**count


def _read_step(flag: str, part: str, step: str, length: float) -> float:
    if re.fullmatch(r"\+\d+(\.\d+)?", step) is None:
        raise _unreadable(flag, part, "a range A..B:+STEP")
    added = float(step[1:])
    if added == 0:
        raise OptionError(f"{flag} {part} never ends; the step must be more than 0.")
    if length / added > MOST_POINTS:
        raise _too_many(f"{flag} {part}", int(length / added) + 1)
    return added


def _in_bounds(flag: str, word: str, value: float, low: float, high: float, unit: str = "") -> float:
    if not low <= value <= high:
        name = f" {unit}" if unit else ""
        raise OptionError(f"{flag} {word} is not allowed; it must be from {low:,.10g} to {high:,.10g}{name}.")
    return value


def _unreadable(flag: str, word: str, allowed: str) -> OptionError:
    return OptionError(f"{flag}: cannot read '{word}'; write {allowed}.")


def _too_many(what: str, count: int) -> OptionError:
    return OptionError(
        f"{what} has {count:,} points; at most {MOST_POINTS:,} are allowed. Narrow a range or widen a step."
    )
