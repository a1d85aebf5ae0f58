"""Users' texts (names of runs, files and models) made safe to show: invisible and control characters, and HTML tables."""

import re
from collections.abc import Iterable, Sequence
from html import escape

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


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Return a table with a title above and notes below. The first column is left-aligned, numbers are right-aligned.

    Without style sheet, script and blank lines, it can be embedded in notebooks and Markdown pages.
    """
    head = "".join(_cell("th", text, column) for column, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell('td', text, column) for column, text in enumerate(row))}</tr>" for row in rows)
    below = "".join(f"<p>{_safe(note)}</p>" for note in notes)
    return (
        f"<div><p><strong>{_safe(title)}</strong></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{below}</div>"
    )


def _cell(tag: str, text: str, column: int) -> str:
    side = "right" if column and _is_numeric(text, tag) else "left"
    return f'<{tag} style="text-align: {side}">{_safe(text)}</{tag}>'


def _is_numeric(text: str, tag: str) -> bool:
    """Return whether a cell is right-aligned: headings, and text that begins like a number."""
    return tag == "th" or text[:1].isdigit() or text[:1] in ("-", "+", ".")


def _safe(text: str) -> str:
    return escape(escaped(text))
