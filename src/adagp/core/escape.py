"""Escapes invisible and control characters in users' texts (names of runs, files and models) before they are shown."""

import re

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # line and paragraph separators
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the text direction
    "\ud800-\udfff]"  # surrogates; Python decodes invalid UTF-8 bytes of file names to them
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(text: object, *, lines: bool = False) -> str:
    r"""Return `text` with characters that are invisible or control a terminal escaped as in Python.

    A byte of a file name that is not UTF-8 becomes \xff. With `lines`, newlines stay.

    >>> escaped("run\x1b[31m\n")
    'run\\x1b[31m\\n'
    """
    return _HIDDEN.sub(lambda match: _escaped_character(match[0], lines), str(text))


def _escaped_character(character: str, lines: bool) -> str:
    if character in _SHORT:
        return character if lines and character == "\n" else _SHORT[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
