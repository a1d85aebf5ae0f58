"""What README and the page on installing say is what the package says of itself, in the order in which a newcomer needs it."""

import re
import tomllib
from pathlib import Path

from tools.fill_summary import pages

from adagp._version import __version__

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
INSTALL = (ROOT / "docs" / "install.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_CONTRIBUTORS = {"dev", "docs"}
WORDS = ("site", "BP batch, GP batch", "ladder")
LONGEST = 100


def test_it_is_one_page() -> None:
    assert len(README.splitlines()) <= LONGEST


def test_the_version_is_the_same_everywhere() -> None:
    assert f"version {__version__}, " in README
    assert f"version = {{{__version__}}}" in README
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_tables_of_results_are_those_of_the_measured_comparisons() -> None:
    """`python -m tools.fill_summary` writes them."""
    for page, content in pages(ROOT).items():
        assert page.read_text("utf-8") == content


def test_every_extra_is_documented() -> None:
    table = [line for line in INSTALL.splitlines() if line.startswith("| `")]
    for extra in PROJECT["optional-dependencies"].keys() - FOR_CONTRIBUTORS:
        assert any(f"`{extra}`" in line.split("|")[1] for line in table), extra


def test_required_versions_are_documented() -> None:
    (torch,) = (one for one in PROJECT["dependencies"] if one.startswith("torch"))
    for page in (README, INSTALL):
        assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in page
        assert f"PyTorch {torch.removeprefix('torch>=')} or newer" in page


def test_the_virtual_environment_is_activated_before_adagp_runs() -> None:
    called = re.search(r"`adagp \w", README)
    assert called is not None
    assert README.index("make demo") < README.index("source .venv/bin/activate") < called.start()


def test_project_terms_are_explained() -> None:
    sheet = (ROOT / "docs" / "cheat-sheet.md").read_text("utf-8")
    glossary = sheet.partition("\n## Words\n")[2].partition("\n## ")[0]
    for word in WORDS:
        assert re.search(rf"^\| {word} \| \w", glossary, re.MULTILINE), word
