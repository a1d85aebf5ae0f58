"""The terminal: text is printed as it is, whoever wrote it. No markup, no emoji codes, no control characters."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from adagp.shown import shown


class Terminal(Console):
    """A console to which a name such as `[bold]` is a name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what strings, table cells and titles become."""
        return super().render_str(shown(text, lines=True), **options)


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]], left: Collection[str] = (), **look: Any) -> Table:
    """Return a table; the first column and those in `left` hold names, the others figures."""
    table = Table(**look)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 or name in left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def text_column(form: str) -> TextColumn:
    """Return a column of a progress bar that takes no markup."""
    return TextColumn(form, markup=False)
