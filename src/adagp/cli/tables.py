"""Tables that lose nothing where the terminal is narrow."""

from collections.abc import Collection, Sequence
from textwrap import fill

from rich.console import Console
from rich.table import Table

from adagp.cli.terminal import Terminal

IN_A_PIPE = 160
"""Characters of a line where nobody looks at a terminal."""
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
    widths = [max([len(name), *(len(row[place]) for row in rows)]) for place, name in enumerate(columns)]
    least = sum(widths[:-1]) + min(widths[-1], LEAST_LAST)
    if least + 3 * len(columns) + 1 <= console.width:
        console.print(_table(columns, rows, right, Table()))
    elif least + 2 * len(columns) <= console.width:
        console.print(_table(columns, rows, right, _plain()))
    else:
        beside = len(columns) - 1
        while beside > 1 and sum(widths[:beside]) + 2 * (beside - 1) > console.width:
            beside -= 1
        _write_in_two(console, columns, rows, right, beside)


def _plain() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)


def _table(columns: Sequence[str], rows: Rows, right: Collection[str], table: Table) -> Table:
    for name in columns:
        last = name == columns[-1]
        table.add_column(name, justify="right" if name in right else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _write_in_two(console: Console, columns: Sequence[str], rows: Rows, right: Collection[str], beside: int) -> None:
    """Print the first columns as a table, and below each row the last one, indented, with any others after it by name."""
    widths = [max([len(name), *(len(row[place]) for row in rows)]) for place, name in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            f"{cell:>{width}}" if name in right else f"{cell:<{width}}"
            for cell, width, name in zip(cells, widths[:beside], columns, strict=False)
        )
        return "  ".join(aligned).rstrip()

    def below(text: str) -> str:
        return fill(text, console.width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)

    console.print(f"{line(columns[:beside])}\n{below(columns[-1])}", style="bold", soft_wrap=True)
    for row in rows:
        others = zip(columns[beside:-1], row[beside:-1], strict=True)
        named = "; ".join(f"{name}: {cell}" for name, cell in others if cell != "-")
        console.print(f"{line(row[:beside])}\n{below(f'{row[-1]} ({named})' if named else row[-1])}", soft_wrap=True)
