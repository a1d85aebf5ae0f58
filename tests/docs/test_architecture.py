"""docs/architecture.md names files that exist, and has every package."""

import re
from pathlib import Path

import adagp

SOURCE = Path(adagp.__file__).parent
TEXT = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")


def test_named_files_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", TEXT)) - {"__init__.py"}
    assert len(named) > 20
    missing = sorted(
        name for name in named if not (SOURCE / name).is_file() and not (SOURCE.parents[1] / name).is_file()
    )
    assert missing == []


def test_the_tree_has_every_package_and_paper() -> None:
    tree = TEXT.partition("## The tree")[2].partition("```text")[2].partition("```")[0]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    papers = {path.parent.name for path in (SOURCE / "papers").glob("*/__init__.py")}
    assert sorted(name for name in packages if f"{name}/" not in tree) == []
    assert sorted(name for name in papers if not re.search(rf"\b{name}\b", tree)) == []


def test_at_most_twenty_entries() -> None:
    entries = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 20, sorted(path.name for path in entries)
