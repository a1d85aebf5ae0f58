"""Output to the terminal: text is printed literally (no markup, emoji codes or control characters); tables fit its width."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.table import Column, Table
from rich.text import Text

from adagp.core.escape import escaped

STATUS_SECONDS = 30.0
"""Without a terminal, a status line is printed this long after the last line."""


class Terminal(Console):
    """A console that prints text such as `[bold]` literally, not as markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string, table cell or title, with control characters escaped."""
        return super().render_str(escaped(text, lines=True), **options)

    def say(self, text: str) -> None:
        """Print a sentence: wrapped between words in a terminal, as one line elsewhere."""
        self.print(text, soft_wrap=not self.is_terminal)


def longest_word(cells: Iterable[str]) -> int:
    """Return the length of the longest word, which is the width at which a column splits no word."""
    return max((len(word) for cell in cells for word in cell.split()), default=0)


def fitting_widths(columns: Iterable[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of columns that take at most `room` in total, unless a word would have to be split.

    If there is too little room, headings are folded first, then cells, beginning with those of the widest columns.
    """
    names = list(columns)
    cells = [[row[index] for row in rows] for index in range(len(names))]
    widths = [longest_word([name, *column]) for name, column in zip(names, cells, strict=True)]
    for wanted in (
        [max(map(len, column), default=0) for column in cells],
        [len(name) for name in names],
    ):
        for index in sorted(range(len(names)), key=wanted.__getitem__):
            if wanted[index] - widths[index] <= room - sum(widths):
                widths[index] = max(widths[index], wanted[index])
    return widths


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]], left: Collection[str] = (), **look: Any) -> Table:
    """Return a table that fits the terminal; the first column and those in `left` contain names, the others figures.

    Rich does not find every set of widths that splits no word, so they are set here. A frame that does not fit is left out.
    """
    names, cells, width = list(columns), list(rows), Terminal().width
    words = sum(longest_word([name, *(row[index] for row in cells)]) for index, name in enumerate(names))
    if "box" not in look and words + 3 * len(names) + 1 > width:
        look |= {"box": None, "padding": (0, 2, 0, 0)}
    table = Table(**look)
    frame = sum(table.padding[1::2]) * len(names) + (len(names) + 1 if table.box else 0)
    for index, column_width in enumerate(fitting_widths(names, cells, width - frame)):
        side: Any = "left" if index == 0 or names[index] in left else "right"
        table.add_column(names[index], justify=side, overflow="fold", width=column_width)
    for row in cells:
        table.add_row(*row)
    return table


def text_column(form: str) -> TextColumn:
    """Return a text column next to a progress bar, without markup; it keeps its width, and the bar shrinks."""
    return TextColumn(form, markup=False, table_column=Column(no_wrap=True))


@contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on standard error until the end of the block; the yielded function changes it.

    It is shown only in terminals, and only by the first process of a parallel run.
    """
    console = Terminal(stderr=True)
    if not console.is_terminal or os.environ.get("RANK", "0") != "0":
        yield lambda text: None
        return
    with console.status(text) as status:
        yield status.update


class Pulse:
    """Tracks when a status line is due in outputs that are not a terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.beat()

    def beat(self) -> None:
        """Record that a line was printed."""
        self._last = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether nothing was printed for `STATUS_SECONDS`."""
        return self._clock() - self._last >= STATUS_SECONDS


def clock_time(seconds: float) -> str:
    """Return a length of time as 0:07, 12:30 or 3:02:11."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_left(elapsed: float, done: float, total: float) -> float | None:
    """Return the remaining seconds at the present speed; None before a twentieth of the total or half a step is done.

    Before that, the speed would be that of processes that start: twelve jobs of seconds would show hours.
    """
    return elapsed * (total - done) / done if done > 0 and done >= min(total / 20, 0.5) else None


IN_A_PIPE = 160
"""The width of a line if the output is not a terminal."""
LEAST_LAST = 24
"""The least width of the last column, unless it needs less."""
INDENT = " " * 4

Rows = Sequence[Sequence[str]]


def print_table(columns: Sequence[str], rows: Rows, right: Collection[str]) -> None:
    """Print a table. Only the cells of the last column, which are sentences or lists, may be folded; `right` aligns columns.

    The table has a frame if there is room. If it is too wide even without a frame, the last column is printed below its row,
    and so are others, if necessary.
    """
    console = Terminal()
    write_table(console if console.is_terminal else Terminal(width=IN_A_PIPE), columns, rows, right)


def write_table(console: Console, columns: Sequence[str], rows: Rows, right: Collection[str]) -> None:
    """Print a table in the width of the console."""
    widths = [max([len(name), *(len(row[index]) for row in rows)]) for index, name in enumerate(columns)]
    least = sum(widths[:-1]) + min(widths[-1], LEAST_LAST)
    if least + 3 * len(columns) + 1 <= console.width:
        console.print(_table(columns, rows, right, Table()))
    elif least + 2 * len(columns) <= console.width:
        console.print(_table(columns, rows, right, _plain()))
    else:
        upper = len(columns) - 1
        while upper > 1 and sum(widths[:upper]) + 2 * (upper - 1) > console.width:
            upper -= 1
        _write_in_two(console, columns, rows, right, upper)


def _plain() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)


def _table(columns: Sequence[str], rows: Rows, right: Collection[str], table: Table) -> Table:
    for name in columns:
        last = name == columns[-1]
        table.add_column(name, justify="right" if name in right else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _write_in_two(console: Console, columns: Sequence[str], rows: Rows, right: Collection[str], upper: int) -> None:
    """Print the first columns as a table, and below each row, indented, the last one, followed by any others by name."""
    widths = [max([len(name), *(len(row[index]) for row in rows)]) for index, name in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            f"{cell:>{width}}" if name in right else f"{cell:<{width}}"
            for cell, width, name in zip(cells, widths[:upper], columns, strict=False)
        )
        return "  ".join(aligned).rstrip()

    def below(text: str) -> str:
        return fill(text, console.width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)

    console.print(f"{line(columns[:upper])}\n{below(columns[-1])}", style="bold", soft_wrap=True)
    for row in rows:
        others = zip(columns[upper:-1], row[upper:-1], strict=True)
        named = "; ".join(f"{name}: {cell}" for name, cell in others if cell != "-")
        console.print(f"{line(row[:upper])}\n{below(f'{row[-1]} ({named})' if named else row[-1])}", soft_wrap=True)
