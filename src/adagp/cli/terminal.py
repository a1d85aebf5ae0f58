"""The terminal: text is printed as it is, whoever wrote it. No markup, no emoji codes, no control characters."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.table import Column, Table
from rich.text import Text

from adagp.core.escape import shown

SIGN_SECONDS = 30.0
"""Where nobody looks at a terminal, a sign of life comes this long after the last one."""


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
        table.add_column(name, justify="left" if place == 0 or name in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def text_column(form: str) -> TextColumn:
    """Return a column of a progress bar that takes no markup and keeps its width: the bar gives way."""
    return TextColumn(form, markup=False, table_column=Column(no_wrap=True))


@contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is going on until the end of the block, or until the given function is told something else.

    Only whoever looks at a terminal sees it; of several processes of one run, the first speaks.
    """
    console = Terminal(stderr=True)
    if not console.is_terminal or os.environ.get("RANK", "0") != "0":
        yield lambda text: None
        return
    with console.status(text) as status:
        yield status.update


class Pulse:
    """Tells when it is time for a sign of life, for outputs that are read later or by programs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.beat()

    def beat(self) -> None:
        """Take note that something was said."""
        self._last = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether nothing was said for long."""
        return self._clock() - self._last >= SIGN_SECONDS


def clock_time(seconds: float) -> str:
    """Return a length of time as 0:07, 12:30 or 3:02:11."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_left(elapsed: float, done: float, total: float) -> float | None:
    """Return the seconds that the rest takes if it goes on as before; None before anything is done."""
    return elapsed * (total - done) / done if done > 0 else None
