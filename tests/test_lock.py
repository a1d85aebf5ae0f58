"""What `make` installs is pinned, locked by hashes, and its licences are listed."""

import re
from pathlib import Path

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
