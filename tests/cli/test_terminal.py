"""Tables at any width: every cell is there, and whole."""

import io
import re
from collections.abc import Sequence

import pytest

from adagp.cli.terminal import Terminal, fitting_widths, table_of, write_table

COLUMNS = ("name", "size", "share", "what it is")
ROWS = [
    ("first-of-the-names", "1,234,567", "12 %", "a sentence that is longer than a line of a narrow terminal can be"),
    ("second", "7", "-", "short"),
]


def printed(width: int, rows: Sequence[Sequence[str]] = ROWS) -> str:
    out = io.StringIO()
    write_table(Terminal(file=out, width=width), COLUMNS, rows, right=("size", "share"))
    return out.getvalue()


@pytest.mark.parametrize("width", [200, 120, 80, 60, 50, 40, 30, 24])
def test_no_cell_is_lost_and_no_line_too_long(width: int) -> None:
    text = printed(width)
    words = re.sub(r"[^\w,.%-]+", " ", text)
    for row in ROWS:
        for cell in row:
            assert all(word in words for word in cell.split() if word != "-"), (width, cell)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= max(width, len("first-of-the-names"))


def test_lines_around_where_there_is_room() -> None:
    assert printed(120).startswith("┏")
    assert printed(66).splitlines()[0].split() == ["name", "size", "share", "what", "it", "is"]


def test_the_last_column_below_its_row_where_there_is_none() -> None:
    lines = printed(40).splitlines()
    assert lines[0].split() == ["name", "size", "share"]
    assert lines[1] == "    what it is"
    assert lines[2].split() == ["first-of-the-names", "1,234,567", "12", "%"]
    assert lines[3].startswith("    a sentence")


def test_other_columns_follow_named() -> None:
    lines = printed(30).splitlines()
    assert lines[0].split() == ["name", "size"]
    assert " ".join(" ".join(lines).split()).count("can be (share: 12 %) second 7 short") == 1


def test_no_rows() -> None:
    assert "what it is" in printed(80, [])


def test_numbers_stay_whole_in_eighty_columns() -> None:
    rows = [("features.10", *["12,345,678"] * 6)]
    console = Terminal(width=80, file=io.StringIO())
    console.print(table_of(("layer", *["some long heading"] * 6), rows, box=None, padding=(0, 1, 0, 0)))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("12,345,678") == 6


def test_a_table_ends_at_its_border_and_without_room_for_lines_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    heads = ("design", "cycles", "seconds", "speed-up", "joules", "saved", "memory joules saved")
    row = ("equal-power", "1.183e+13", "5.915e+04", "1.574x", "5.442e+04", "12.2%", "14.9%")
    Terminal().print(table_of(heads, [row]))
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines} == {79}
    assert lines[-2].endswith("│ 12.2% │  14.9% │")
    monkeypatch.setenv("COLUMNS", "75")
    Terminal().print(table_of(heads, [row]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == list(row)
    assert max(map(len, lines)) <= 75


def test_headings_are_folded_before_cells() -> None:
    heads, rows = ["platform", "price without bubbles", "verdict"], [["cpu", "0.5", "too close to say"]]
    assert fitting_widths(heads, rows, 100) == [8, 21, 16]
    assert fitting_widths(heads, rows, 40) == [8, 7, 16]
    assert fitting_widths(heads, rows, 30) == [8, 7, 7]  # too little: a cell is folded, and no word is split
    assert fitting_widths([], [], 80) == []


def test_a_sentence_is_wrapped_between_words_in_a_terminal_only() -> None:
    text = "a sentence that is wider than forty characters, which is not much"
    wrapped, whole = io.StringIO(), io.StringIO()
    Terminal(file=wrapped, width=40, force_terminal=True, color_system=None).say(text)
    Terminal(file=whole, width=40).say(text)
    assert wrapped.getvalue().split("\n") == [
        "a sentence that is wider than forty ",
        "characters, which is not much",
        "",
    ]
    assert whole.getvalue() == f"{text}\n"
