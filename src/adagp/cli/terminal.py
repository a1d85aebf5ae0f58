"""The terminal: text is printed literally (no markup, no emoji codes, no control characters), tables fit its width."""

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

SIGN_SECONDS = 30.0
"""Without a terminal, a status line is printed this long after the last line."""


class Terminal(Console):
    """A console that prints text such as `[bold]` literally, not as markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what strings, table cells and titles become."""
        return super().render_str(escaped(text, lines=True), **options)

    def say(self, text: str) -> None:
        """Print a sentence: wrapped between words in a terminal, as one line elsewhere."""
        self.print(text, soft_wrap=not self.is_terminal)


def longest_word(cells: Iterable[str]) -> int:
    """Return the length of the longest word: a column that is as wide splits no number."""
    return max((len(word) for cell in cells for word in cell.split()), default=0)


def fitting_widths(columns: Iterable[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of columns that together take at most `room`, as far as no word is split.

    Where there is too little room, headings are folded first, and then cells, those of the widest columns before others.
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
    """Return a table that fits the terminal; the first column and those in `left` hold names, the others figures.

    Rich does not find every set of widths that splits no word, so they are set here. Lines are left out where they do not fit.
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
    """Return a column of a progress bar that takes no markup and keeps its width: the bar gives way."""
    return TextColumn(form, markup=False, table_column=Column(no_wrap=True))


@contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on standard error until the end of the block; the yielded function changes it.

    It is shown in terminals only, and by the first process of a parallel run.
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
        """Note that a line was printed."""
        self._last = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether nothing was printed for long."""
        return self._clock() - self._last >= SIGN_SECONDS


def clock_time(seconds: float) -> str:
    """Return a length of time as 0:07, 12:30 or 3:02:11."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_left(elapsed: float, done: float, total: float) -> float | None:
    """Return the seconds that the rest takes at the present speed; None before a twentieth of it or half a step is done.

    Before that, what is measured is how long processes take to start: twelve jobs of seconds would show hours.
    """
    return elapsed * (total - done) / done if done > 0 and done >= min(total / 20, 0.5) else None


IN_A_PIPE = 160
"""Width of a line without a terminal."""
LEAST_LAST = 24
"""Characters that the last column keeps, or all that it needs, if that is less."""
INDENT = " " * 4

Rows = Sequence[Sequence[str]]


def print_table(columns: Sequence[str], rows: Rows, right: Collection[str]) -> None:
    """Print a table whose cells stay whole; those of the last column, which are sentences or lists, may be folded.

    It has lines around it where there is room, and none where there is less; where even that is too wide, the last column
    stands below its row, and where it must be, other columns do.
    """
    console = Terminal()
    write_table(console if console.is_terminal else Terminal(width=IN_A_PIPE), columns, rows, right)


def write_table(console: Console, columns: Sequence[str], rows: Rows, right: Collection[str]) -> None:
    """Print a table as wide as the console is."""
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
    """Print the first columns as a table, and below each row the last one, indented, with any others after it by name."""
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
