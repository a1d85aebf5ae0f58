"""The terminal: text is printed as it is, whoever wrote it. No markup, no emoji codes, no control characters."""

from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from adagp.shown import shown


class Terminal(Console):
    """A console to which a name such as `[bold]` is a name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what strings, table cells and titles become."""
        return super().render_str(shown(text, lines=True), **options)


def text_column(form: str) -> TextColumn:
    """Return a column of a progress bar that takes no markup."""
    return TextColumn(form, markup=False)
