"""Tables for notebooks: what a text holds is shown, never obeyed."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from adagp.core.html_tables import html_table

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
