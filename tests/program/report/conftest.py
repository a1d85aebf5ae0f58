"""Run folders written by hand, without training; and the page in a real browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from adagp.program.report.page import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory, run_writer: Any) -> Path:
    """Return a folder with runs of three methods, three seeds each."""
    root = tmp_path_factory.mktemp("report") / "study"
    write = run_writer(root)
    for seed in range(3):
        write(f"bp-{seed}", method="bp", seed=seed, best=0.9 + 0.01 * seed)
        write(f"adagp-{seed}", seed=seed, best=0.85 + 0.02 * seed)
        write(f"remap-{seed}", method="remap", seed=seed, best=0.8 + 0.01 * seed)
    return root


@pytest.fixture(scope="session")
def study_page(study: Path) -> Path:
    """Return the page about the study."""
    out = study.parent / "report.html"
    assert write_report([study], out) == 9
    return out


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[OpenPage]:
    """Return a function that opens a file or an address; nothing from elsewhere may be asked for until the test ends."""
    complaints: list[str] = []

    def note(message: "ConsoleMessage") -> None:
        complaints.append(f"{message.type}: {message.text}")

    def opened(place: Path | str, size: tuple[int, int], scheme: Any = "light") -> "Page":
        address = place if isinstance(place, str) else place.as_uri()
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda asked: None if asked.url.startswith(address) else complaints.append(asked.url))
        page.goto(address)
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        return page

    yield opened
    for context in browser.contexts:
        context.close()
    assert complaints == []
