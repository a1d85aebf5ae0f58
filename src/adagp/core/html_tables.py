"""HTML tables for `_repr_html_` of results in notebooks. All text is escaped here, and only here."""

from collections.abc import Iterable, Sequence
from html import escape

from adagp.core.escape import escaped


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
