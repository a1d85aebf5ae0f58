"""JSON files from untrusted sources: read within limits and checked against a shape; an error is one sentence.

A shape describes what a value must be. The content of a file is only data: nothing in it is ever imported or run.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from adagp.errors import RunError

DEPTH = 32
"""The deepest nesting of tables and lists."""
HIGHEST = 2**63
"""The largest whole number that is accepted."""
LARGE = 10**18
"""The largest result that is accepted: results are added and plotted."""
MOST_RESULT = 64 * 2**20
"""The most bytes of a result."""


@dataclass(frozen=True)
class Plain:
    """A value that passes `accepted`; `words` describe it in errors."""

    words: str
    accepted: Callable[[Any], bool]


@dataclass(frozen=True)
class ListOf:
    """A list whose items all have one shape."""

    item: "Shape"


@dataclass(frozen=True)
class TableOf:
    """A table whose values all have one shape."""

    value: "Shape"


@dataclass(frozen=True)
class Fields:
    """A table with known names; other names have the shape `others`."""

    known: Mapping[str, "Shape"]
    others: "Shape"
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Both:
    """A value that has a shape and then also passes `also`."""

    shape: "Shape"
    also: Plain


@dataclass(frozen=True)
class Either:
    """A value that has one of two shapes."""

    first: "Shape"
    second: "Shape"


Shape = Plain | ListOf | TableOf | Fields | Both | Either


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


ANYTHING = Plain("anything", lambda value: True)
TEXT = Plain("text", lambda value: isinstance(value, str))
TEXT_OR_NOTHING = Plain("text or null", lambda value: value is None or isinstance(value, str))
NUMBER = Plain("a number", _is_number)
FIGURE = Plain("a number or null", lambda value: value is None or _is_number(value))
AMOUNT = Plain("a number from 0 on", lambda value: _is_number(value) and value >= 0)
COUNT = Plain("a whole number from 0 on", lambda value: _is_number(value) and isinstance(value, int) and value >= 0)
SCALAR = Plain("text, a number, true, false or null", lambda value: not isinstance(value, dict | list))
SWITCH = Plain("true or false", lambda value: isinstance(value, bool))
MODERATE = Plain("a number from -1e+18 to 1e+18", lambda value: _is_number(value) and abs(value) <= LARGE)
POSITIVE = Plain("a number from 1e-18 to 1e+18", lambda value: _is_number(value) and 1 / LARGE <= value <= LARGE)
WHOLE = Plain("a whole number from 1 on", lambda value: COUNT.accepted(value) and value > 0)
ABSENT = Plain("left out", lambda value: False)
"""For unknown names."""


def record_of(known: Mapping[str, Shape], others: Shape = ANYTHING) -> Fields:
    """Return the shape of a table in which all the known names are there."""
    return Fields(known, others, tuple(known))


def one_of(*words: str) -> Plain:
    """Return the shape of a text that is one of `words`."""
    return Plain(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def read_document(path: Path, shape: Shape, most: int) -> Any:
    """Return the content of the JSON file `path` of at most `most` bytes; raise if it cannot be read or has another shape."""
    try:
        return parse_document(read_text(path, most), shape)
    except RunError as error:
        raise RunError(f"cannot read '{path}': {error}") from None


def read_result(path: Path, shape: Shape) -> Any:
    """Return the content of a JSON file that an earlier run of the command wrote, to continue from."""
    try:
        return read_document(path, shape, MOST_RESULT)
    except RunError as error:
        raise RunError(f"{error} Delete the file to compute it again.") from None


def read_text(path: Path, most: int) -> str:
    """Return the text of a regular file of at most `most` bytes, or raise a `RunError` with the reason in one sentence."""
    if not path.is_file():  # reading a pipe or a device could block forever
        raise RunError("there is no such file." if not path.exists() else "it is not a regular file.")
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise RunError(f"{error.strerror}.") from None
    if len(content) > most:
        raise RunError(f"it has more than {most:,} bytes.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise RunError("it is not text in UTF-8.") from None


def parse_document(text: str, shape: Shape, *, finite: bool = True) -> Any:
    """Return the content of a JSON text, or raise a `RunError` with the fault in one sentence.

    Without `finite`, a fraction that is too large is read as infinity: the check is slow for millions of numbers.
    """
    try:
        content = (_DECODER if finite else _QUICK_DECODER).decode(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise RunError(f"it is not JSON ({error}).") from None
    if text.count("{") + text.count("[") > DEPTH:
        _check_depth(content)
    if "\\u" in text:  # without escapes, a text in UTF-8 holds no half characters
        _check_characters(content)
    if fault := find_fault(content, shape):
        raise RunError(fault)
    return content


def _whole_number(text: str) -> int:
    number = int(text)
    if not -HIGHEST <= number <= HIGHEST:
        raise _too_large()
    return number


def _fraction(text: str) -> float:
    number = float(text)
    if number in (inf, -inf):
        raise _too_large()
    return number


def _constant(name: str) -> Any:
    """Read NaN and Infinity, which are not JSON but which other programs write, as missing values."""
    return None


# Numbers are checked while they are read, not in a second walk.
_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_float=_fraction, parse_constant=_constant)
_QUICK_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=_constant)


def _too_large() -> RunError:
    return RunError(f"it holds a number beyond {float(HIGHEST):.2g}.")


def _too_deep() -> RunError:
    return RunError(f"it is nested more than {DEPTH} levels deep.")


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(DEPTH + 1):
        level = [part for value in level for part in _parts(value) if part.__class__ in (dict, list)]
    if level:
        raise _too_deep()


def _check_characters(content: Any) -> None:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value
        waiting += _parts(value)
        if isinstance(value, str):
            try:
                value.encode("utf-8", "surrogateescape")  # names of files may hold any bytes
            except UnicodeEncodeError:
                raise RunError("it holds an unpaired surrogate, half of a character.") from None


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def find_fault(value: Any, shape: Shape, path: str = "") -> str | None:
    """Return a sentence about the first part of `value` that has another shape; None if there is none."""
    if isinstance(shape, Plain):
        return None if shape.accepted(value) else _sentence(value, path, shape.words)
    if isinstance(shape, Both):
        return find_fault(value, shape.shape, path) or find_fault(value, shape.also, path)
    if isinstance(shape, Either):
        return find_fault(value, shape.first, path) and find_fault(value, shape.second, path)
    if isinstance(shape, ListOf):
        return _find_list_fault(value, shape, path)
    if isinstance(shape, TableOf):
        shape = Fields({}, others=shape.value)
    return _find_table_fault(value, shape, path)


def _find_list_fault(value: Any, shape: ListOf, path: str) -> str | None:
    if not isinstance(value, list):
        return _sentence(value, path, "a list")
    faults = (find_fault(item, shape.item, f"{path}[{number}]") for number, item in enumerate(value))
    return next(filter(None, faults), None)


def _find_table_fault(value: Any, shape: Fields, path: str) -> str | None:
    if not isinstance(value, dict):
        return _sentence(value, path, "a table")
    for name in shape.required:
        if name not in value:
            return f"{path + ': ' if path else ''}'{name}' is missing."
    prefix = f"{path}." if path else ""
    checked = value if shape.others is not ANYTHING else [name for name in shape.known if name in value]
    faults = (find_fault(value[name], shape.known.get(name, shape.others), f"{prefix}{name}") for name in checked)
    return next(filter(None, faults), None)


def _sentence(value: Any, path: str, allowed: str) -> str:
    text = json.dumps(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{f'{path!r} is' if path else 'it holds'} {text}; it must be {allowed}."
