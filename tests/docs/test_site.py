"""The site: built strictly, whole in itself, with every command and every public name; searched in a browser.

The browser test skips where there is no Chromium, unless ADAGP_BROWSER_TEST=required. Screenshots for people to look at are
written to runs/screenshots.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from tests.docs.blocks import ROOT
from tools.command_reference import commands

import adagp

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """Collects what a page links to, what it loads, and its marks."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(given.get("href", ""))
        self.loaded += [given["src"]] if "src" in given else []


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built once; a warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Page]:
    """Return all pages of the site."""
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_site_has_no_dead_links(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 50
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # it is shown at any address, so its links begin at the site's root
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            known = pages[target].anchors if target in pages else {anchor}
            if not target.is_file() or (anchor and anchor not in known and anchor != "__skip"):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_pages_load_no_external_files(site: Path, pages: dict[Path, Page]) -> None:
    assert [
        one for page in pages.values() for one in page.loaded if re.match(r"\w+:|//", one) and one[:5] != "data:"
    ] == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert [found for text in styles for found in re.findall(r"(?:url\(|@import\s+)[\"']?(?:https?:)?//", text)] == []


def test_every_command_has_a_page_with_its_options(site: Path) -> None:
    found = commands()
    assert {"train", "compare", "simulate", "rtl power"} <= set(found)
    for words, command in found.items():
        text = (site / "commands" / f"{words.replace(' ', '-')}.html").read_text("utf-8")
        missing = [one for option in command.params for one in option.opts if one.startswith("--") and one not in text]
        assert [one for one in missing if one != "--help"] == []


def test_every_public_name_is_documented(pages: dict[Path, Page], site: Path) -> None:
    anchors = pages[site / "reference" / "api.html"].anchors
    assert [name for name in dir(adagp) if name != "__version__" and f"adagp.{name}" not in anchors] == []


def test_notebooks_are_shown_with_their_outputs(site: Path) -> None:
    shown = {"train_and_compare": "predicted in GP batches</strong>", "simulate_and_explore": "none is measured."}
    for name, words in shown.items():
        text = (site / "notebooks" / f"{name}.html").read_text("utf-8")
        assert words in text
        assert ".svg" in text
        assert f'href="{name}.ipynb"' in text


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the base class
        """Leave standard error alone."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Return the address at which the site is served, on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


LOOKED_AT = (
    "index.html",
    "tutorial.html",
    "commands/train.html",
    "reference/api.html",
    "notebooks/train_and_compare.html",
    "results.html",
)


def test_search_finds_pages_and_pages_fit_a_phone(address: str, browser: "Browser", screenshots: Path) -> None:
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith((address, "data:", "blob:")) else complaints.append(request.url),
    )
    page.goto(f"{address}/index.html")
    found = page.locator("li.md-search-result__item a")
    search = page.locator("input.md-search__input")
    for seconds in (1, 2, 4, 8, 16, 32):  # keys pressed before the page listens are lost: a reader types again
        search.fill("")
        search.press_sequentially("baseline")  # the page reads the input at keyup, an event that fill() does not send
        page.wait_for_timeout(1000 * seconds)
        if found.count():
            break
    found.first.wait_for()
    page.screenshot(path=screenshots / "docs-search.png")
    page.click("li.md-search-result__item a >> nth=0")
    page.wait_for_function("() => document.querySelector('article')?.innerText.toLowerCase().includes('baseline')")
    for place in LOOKED_AT:
        page.goto(f"{address}/{place}")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(f"() => document.documentElement.scrollWidth <= {width}")  # once it is laid out
            page.screenshot(path=screenshots / f"docs-{place.replace('/', '-').removesuffix('.html')}-{width}.png")
    context.close()
    assert complaints == []


SCROLLED = """() => [...document.querySelectorAll('article .md-typeset__scrollwrap')]
    .filter(each => each.scrollWidth > each.clientWidth)
    .map(each => each.innerText.slice(0, 50))"""
TOO_WIDE = """() => [...document.querySelectorAll('article table, article img')]
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(each => each.tagName)"""


def test_wide_tables_fit_a_screen(address: str, browser: "Browser") -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    for place in ("overview.html", "results.html", "methods/feedback.html", "results/batch-size.html"):
        page.goto(f"{address}/{place}")
        page.wait_for_selector("article .md-typeset__scrollwrap")
        assert page.evaluate(SCROLLED) == [], place
    page.close()


def test_pages_are_printed_whole_on_white(address: str, browser: "Browser") -> None:
    context = browser.new_context(viewport={"width": 688, "height": 900}, color_scheme="dark")  # the text on A4
    page = context.new_page()
    page.emulate_media(media="print", color_scheme="dark")
    for place in (*LOOKED_AT, "cheat-sheet.html", "models.html", "commands/sweep.html", "results/batch-size.html"):
        page.goto(f"{address}/{place}")
        page.wait_for_function("() => document.querySelector('article')")
        assert page.evaluate(TOO_WIDE) == [], place
        colours = page.evaluate(
            "() => [document.documentElement, document.body].map(e => getComputedStyle(e).backgroundColor)"
        )
        assert colours == ["rgb(255, 255, 255)"] * 2
    context.close()


def test_search_index_has_all_pages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found = {one["location"].partition("#")[0] for one in index["docs"]}
    assert {
        "tutorial.html",
        "guides/choose.html",
        "commands/train.html",
        "methods/feedback.html",
        "project/changelog.html",
    } <= found
