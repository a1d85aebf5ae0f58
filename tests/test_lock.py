"""What `make` installs is pinned, locked by hashes, and its licences are listed."""

import re
from pathlib import Path

import pytest
from tools.sbom import complete, listed_licences
from tools.write_lock import BUILD, NOT_LOCKED, pins

ROOT = Path(__file__).parents[1]


def locked(path: Path) -> dict[str, str]:
    """Return the versions in a lock by name; every entry has hashes, and none an address."""
    text = path.read_text("utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert "://" not in text
    return pins("\n".join(entry.split(" \\")[0] for entry in entries))


def test_the_locks_have_all_pins_with_hashes() -> None:
    wanted = pins((ROOT / "constraints.txt").read_text("utf-8"))
    assert locked(ROOT / "requirements.lock") == {
        name: version for name, version in wanted.items() if name not in NOT_LOCKED
    }
    assert locked(ROOT / "requirements-build.lock") == {name: wanted[name] for name in BUILD}
    assert locked(ROOT / "tools" / "sbom.lock") == pins((ROOT / "tools" / "sbom.txt").read_text("utf-8"))


def test_make_builds_with_locked_packages_only() -> None:
    """pip itself and what builds the package are locked, and no other build environment is downloaded."""
    text = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    installs = [
        line for line in text.splitlines() if line.startswith("\t") and ("$(PIP)" in line or "pip install" in line)
    ]
    assert len(installs) == 6
    for line in installs:
        assert "--require-hashes --no-deps" in line or "--no-build-isolation -c constraints.txt -e" in line
    assert {"pip", "hatchling", "editables"} <= set(BUILD)


def test_licences_of_all_packages_are_listed() -> None:
    text = (ROOT / "docs" / "licences.md").read_text("utf-8")
    missing = [name for name in pins((ROOT / "constraints.txt").read_text("utf-8")) if f"| {name} |" not in text]
    assert missing == [], "list the licence that the package declares in docs/licences.md"


def test_the_list_of_components_has_all_versions_and_licences() -> None:
    licences = listed_licences()
    names = pins((ROOT / "constraints.txt").read_text("utf-8"))
    declared = [{"license": {"id": "MIT"}}]
    components = [{"name": name, "version": version} for name, version in names.items()]
    document = {
        "metadata": {"component": {"name": "adagp"}},
        "components": [*components, {"name": "x", "licenses": declared}],
    }
    done = complete(document, "1.2", licences)
    assert done["metadata"]["component"] == {"name": "adagp", "version": "1.2", "purl": "pkg:pypi/adagp@1.2"}
    assert all(component["licenses"] for component in done["components"])
    assert done["components"][-1]["licenses"] == declared
    torch = next(component for component in done["components"] if component["name"] == "torch")
    assert torch["licenses"][0]["license"]["name"] == licences["torch"] != ""
    with pytest.raises(SystemExit, match=r"^docs/licences.md lists no licence of unheard-of\.$"):
        complete({**document, "components": [{"name": "unheard-of"}]}, "1.2", licences)
