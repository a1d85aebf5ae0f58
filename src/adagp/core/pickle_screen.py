"""Screens untrusted pickles before they are read: torch's weights-only reader runs no code, but it can be made to hang.

A tuple that contains the same tuple twice, nested 60 deep, takes 800 bytes; hashing it, as the key of a dictionary, takes
centuries. So this module follows the instructions of a pickle without making any object. Each value has a *weight*, the number
of objects that a walk through it would meet, and the total weight of all hashed values is limited.
"""

import pickle
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 64 * 2**20
"""The most bytes of a pickle, which does not include the tensors."""
COLLIDING = 2**60
"""Whole numbers from about here on can share a hash, so that a dictionary with many of them takes quadratic time."""
_COLLIDING_WEIGHT = 1000
_HEAVIEST = 2**62
_FREE_WEIGHT, _WEIGHT_PER_INSTRUCTION = 100_000, 64
_MARK = object()
_HASHED_ALL = ("ADDITEMS", "FROZENSET", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST")
_GROWING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")


@dataclass
class _Value:
    weight: int = 1


def check_pickle(content: bytes) -> None:
    """Raise `UnpicklingError` on a damaged pickle, and on one that would take long, or much memory, to read."""
    if len(content) > MOST_BYTES:
        raise pickle.UnpicklingError(f"its pickle has more than {MOST_BYTES:,} bytes")
    screen = _Screen(len(content))
    try:
        for opcode, argument, _ in pickletools.genops(content):
            screen.follow(opcode, argument)
    except (IndexError, KeyError, ValueError, AttributeError) as fault:  # not a pickle that could be read
        if isinstance(fault, pickle.UnpicklingError):
            raise
        raise pickle.UnpicklingError(f"its pickle is damaged: {fault}") from None


class _Screen:
    """The stack and the memo of a reader, with weights for values."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._instructions = 0
        self._hashed = 0

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Apply one instruction to the stack."""
        self._instructions += 1
        name = opcode.name
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._remember(len(self._memo) if name == "MEMOIZE" else int(argument))
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[int(argument)])
        elif name == "MARK":
            self._stack.append(_MARK)
        elif name == "DUP":
            self._stack.append(self._stack[-1])
        elif name not in ("PROTO", "FRAME", "STOP"):
            self._combine(name, opcode, argument)

    def _remember(self, number: int) -> None:
        if number > self._size:  # Python's reader would allocate that many entries
            raise pickle.UnpicklingError("it claims more than the file can hold")
        self._memo[number] = self._stack[-1]

    def _combine(self, name: str, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        parts = self._taken(opcode)
        grown = self._stack[-1] if name in _GROWING else None
        self._hash(name, parts)
        weight = min(sum(part.weight for part in parts), _HEAVIEST)
        if isinstance(grown, _Value):
            grown.weight = min(grown.weight + weight, _HEAVIEST)
        elif opcode.stack_after:
            large = isinstance(argument, int | float) and not abs(argument) < COLLIDING
            self._stack.append(_Value(_COLLIDING_WEIGHT if large else 1 + weight))

    def _taken(self, opcode: pickletools.OpcodeInfo) -> list[_Value]:
        """Take the values that an instruction uses off the stack, except the one that it adds to."""
        before = opcode.stack_before
        if pickletools.markobject in before:
            parts: list[_Value] = []
            while (value := self._stack.pop()) is not _MARK:
                parts.append(value)
            return parts[::-1]
        count = len(before) - (opcode.name in _GROWING)
        parts = [self._stack.pop() for _ in range(count)][::-1]
        if any(part is _MARK for part in parts):
            raise pickle.UnpicklingError("its pickle is damaged: a mark where a value is needed")
        return parts

    def _hash(self, name: str, parts: list[_Value]) -> None:
        hashed = parts if name in _HASHED_ALL else parts[::2] if name in ("SETITEM", "SETITEMS", "DICT") else []
        self._hashed += sum(part.weight for part in hashed)
        if self._hashed > _FREE_WEIGHT + _WEIGHT_PER_INSTRUCTION * self._instructions:
            raise pickle.UnpicklingError("its keys are nested in a way that would take too long to read")


def check_torch_archive(file: Path | IO[bytes]) -> int:
    """Return the total size in bytes of the entries of a file of `torch.save`; raise if it is damaged or not written by torch.

    torch ignores wrong checksums. A compressed entry could claim any size, and of two entries with the same name another
    reader might read the other one.
    """
    with zipfile.ZipFile(file) as archive:
        pickled = _find_pickle(archive)
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        if pickled.file_size > MOST_BYTES:
            raise pickle.UnpicklingError(f"its pickle has more than {MOST_BYTES:,} bytes")
        check_pickle(archive.read(pickled))
        return sum(entry.file_size for entry in archive.infolist())


def _find_pickle(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the entry of the pickle; raise on entries that torch never writes."""
    entries = archive.infolist()
    if packed := [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]:
        raise zipfile.BadZipFile(f"{packed[0]} is compressed")
    names = {entry.filename for entry in entries}
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if len(names) < len(entries) or len(pickles) != 1 or archive.comment:
        raise zipfile.BadZipFile("it is not an archive of torch.save")
    return pickles[0]
