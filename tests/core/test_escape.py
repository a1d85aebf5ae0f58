"""Texts of users are shown as they are; what cannot be seen is escaped."""

import os
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.escape import escaped, html_table


@pytest.mark.parametrize(
    "text", ["", "run-1", "[bold]x[/]", "[link=https://a]b[/link]", "*?", "$x^2$", "<b>", "Übung 日本"]
)
def test_printable_text_is_unchanged(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        (os.fsdecode(b"run\xff"), r"run\xff"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\u2028\ud800", r"\u2028\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, seen: str) -> None:
    assert escaped(text) == seen


def test_own_line_ends_are_kept() -> None:
    assert escaped("a\nb\x1b", lines=True) == "a\nb\\x1b"


@given(st.text(st.characters()))
def test_escaped_text_can_always_be_written(text: str) -> None:
    assert escaped(text).encode().decode().isprintable() or any(not letter.isprintable() for letter in text)
    assert "\n" not in escaped(text)
    assert escaped(escaped(text)) == escaped(text)


ALLOWED = {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}


class Reader(HTMLParser):
    """Collects the tags of a page and the texts of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str | None] = set()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {value for _, value in attrs}
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_a_table() -> None:
    assert html_table("Two", ("name", "count"), [("a", "1"), ("b", "text")], ["below"]) == (
        "<div><p><strong>Two</strong></p><table><thead><tr>"
        '<th style="text-align: left">name</th><th style="text-align: right">count</th></tr></thead><tbody>'
        '<tr><td style="text-align: left">a</td><td style="text-align: right">1</td></tr>'
        '<tr><td style="text-align: left">b</td><td style="text-align: left">text</td></tr>'
        "</tbody></table><p>below</p></div>"
    )


def test_hostile_text_is_shown_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&\x1b\n"
    page = html_table(evil, (evil,), [(evil,)], [evil])
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;\\x1b\\n") == 4
    assert "<script" not in page


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_no_text_becomes_a_tag(texts: list[str]) -> None:
    reader = Reader()
    page = html_table(texts[0], texts, [texts, texts], texts)
    reader.feed(page)
    assert set(reader.tags) <= ALLOWED
    assert reader.attributes <= {"text-align: left", "text-align: right"}
    assert len(reader.cells) == 3 * len(texts)
    assert "\n" not in page
