"""Texts of users are shown as they are; what cannot be seen is escaped."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.escape import escaped


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
