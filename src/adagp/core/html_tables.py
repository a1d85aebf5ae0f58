"""Tables as HTML, for notebooks: what `_repr_html_` of results is made of. Every text is escaped here, and nowhere else."""

from collections.abc import Iterable, Sequence
from html import escape

from adagp.core.escape import shown


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Return a table with a title above it and notes below. The first column is aligned to the left, numbers to the right.

    It has no style sheet, script or blank line: it looks as tables do where it is shown, in a Markdown page too.
    """
    head = "".join(_cell("th", text, place) for place, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell('td', text, place) for place, text in enumerate(row))}</tr>" for row in rows)
    below = "".join(f"<p>{_safe(note)}</p>" for note in notes)
    return (
        f"<div><p><strong>{_safe(title)}</strong></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{below}</div>"
    )


def _cell(tag: str, text: str, place: int) -> str:
    side = "right" if place and _numeric(text, tag) else "left"
    return f'<{tag} style="text-align: {side}">{_safe(text)}</{tag}>'


def _numeric(text: str, tag: str) -> bool:
    """Tell whether a cell goes to the right: heads of all but the first column, and what begins as a number does."""
    return tag == "th" or text[:1].isdigit() or text[:1] in ("-", "+", ".")


def _safe(text: str) -> str:
    return escape(shown(text))
