"""Texts of users (names of runs, files and models) as a terminal, a page, a picture or a table may show them."""

import re

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # line and paragraph separators
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of reading
    "\ud800-\udfff]"  # halves of characters; Python puts bytes that are not UTF-8 among them
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def shown(text: object, *, lines: bool = False) -> str:
    r"""Return `text` as it is, but for what cannot be seen or would steer a terminal: that is escaped as in Python.

    A byte of a file name that is not UTF-8 becomes \xff. With `lines`, the text is ours and its line ends stay.

    >>> shown("run\x1b[31m\n")
    'run\\x1b[31m\\n'
    """
    return _HIDDEN.sub(lambda match: _escaped(match[0], lines), str(text))


def _escaped(character: str, lines: bool) -> str:
    if character in _SHORT:
        return character if lines and character == "\n" else _SHORT[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
