"""Names of runs, files and models in every output: shown as they are, nowhere taken for markup, formulas or HTML."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.marks import slow

from adagp.cli.terminal import Terminal
from adagp.core.escape import escaped

Program = Callable[..., Any]
NAMES = (
    "[bold]it[/bold]",
    "[/]",
    "[link=a.example]b",
    "a*b?",
    "$x^{$",
    "$a$ \\$",
    "<script>alert(1)</script>".replace("/", "|"),
    "line\nbreak",
    "esc\x1b[31m",
    os.fsdecode(b"byte\xff"),
    ":smile: 日本",
)


@pytest.mark.parametrize("name", NAMES)
def test_terminal_tables_and_titles(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    table = Table(title=escaped(name))
    table.add_column(escaped(name))
    table.add_row(escaped(name))
    console = Terminal(width=200)
    console.print(table)
    console.print(f"Run folder: {escaped(name)}", soft_wrap=True)
    assert capsys.readouterr().out.count(escaped(name)) == 4


@pytest.mark.parametrize("name", NAMES)
def test_errors_name_what_was_given(program: Program, name: str) -> None:
    for arguments in (
        ("models", name),
        ("train", "--dataset", name),
        ("plot", name),
        ("simulate", "vgg13", "--cell", name),
    ):
        ended = program(*arguments)
        assert ended.code == 2
        assert f"'{escaped(name)}'" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.medium
@pytest.mark.parametrize("name", [name if place % 3 == 0 else slow(name) for place, name in enumerate(NAMES)])
def test_pictures_and_reports(program: Program, run_writer: Callable[[Path], Any], name: str) -> None:
    folder = run_writer(Path.cwd())(name, method="adagp")
    ended = program("plot", folder, "--out", "pictures")
    assert ended.code == 0
    assert f"sites-{escaped(Path(name).name)}.svg" in ended.out
    ended = program("report", folder, "--out", "it.html")
    assert ended.code == 0
    page = Path("it.html").read_text("utf-8")
    assert "<script>alert" not in re.sub(r"(?s)<script id=.*", "", page)
    assert "\x1b" not in page
    assert "byte\udcff" not in page


def test_a_run_in_a_folder_with_markup(program: Program, short: tuple[str, ...]) -> None:
    ended = program("train", *short, "--out", "[bold]it\n[/x]")
    assert ended.code == 0
    assert "\nRun folder: [bold]it\\n[/x]\n" in ended.err
