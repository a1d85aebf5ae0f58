"""The documents' links lead somewhere where the files lie, as a code host shows them; `test_site.py` looks at the site's."""

import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from tests.docs.blocks import DOCUMENTS, ROOT


@cache
def tokens(path: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(path.read_text("utf-8"))


def links(path: Path) -> list[str]:
    """Return the targets of a document's links and pictures that are not elsewhere."""
    inner = [child for token in tokens(path) for child in token.children or []]
    targets = [
        str(child.attrGet("href") or child.attrGet("src")) for child in inner if child.type in ("link_open", "image")
    ]
    return [target for target in targets if not re.match(r"\w+:", target)]


@cache
def anchors(path: Path) -> set[str]:
    """Return the marks that code hosts give a document's headings."""
    found: dict[str, int] = {}
    parsed = tokens(path)
    for place, token in enumerate(parsed):
        if token.type == "heading_open":
            inner = parsed[place + 1].children or []
            text = "".join(child.content for child in inner if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    return {slug if not number else f"{slug}-{number}" for slug, last in found.items() for number in range(last + 1)}


def is_dead(link: str, path: Path) -> bool:
    name, _, anchor = link.partition("#")
    target = path.parent.joinpath(name).resolve() if name else path
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


def test_no_dead_links() -> None:
    paths = [ROOT / document for document in DOCUMENTS]
    assert [f"{path}: {link}" for path in paths for link in links(path) if is_dead(link, path)] == []


def test_files_in_code_spans_exist() -> None:
    """Such as `tests/core/test_cache.py`; the changelog names files of its time."""
    inner = {
        document: [child for token in tokens(ROOT / document) for child in token.children or []]
        for document in DOCUMENTS
        if document != "CHANGELOG.md"
    }
    paths = [
        (document, child.content)
        for document, children in inner.items()
        for child in children
        if child.type == "code_inline"
        and re.fullmatch(r"(tests|src|tools|benchmarks|examples)/[\w/]+\.\w+", child.content)
    ]
    assert len(paths) > 20
    assert [f"{document}: {path}" for document, path in paths if not (ROOT / path).exists()] == []


def test_links_and_headings_are_parsed() -> None:
    results = ROOT / "docs" / "results.md"
    assert "the-experiments" in anchors(results)
    assert "docs/images/report.png" in links(ROOT / "README.md") or len(links(ROOT / "README.md")) > 10
    assert "nowhere" not in anchors(results)
