"""What `make` installs is pinned, locked by hashes, and its licences are listed."""

import re
from pathlib import Path

from tools.write_lock import NOT_LOCKED, pins

ROOT = Path(__file__).parents[1]


def test_the_lock_has_all_pins_with_hashes_and_no_address() -> None:
    text = (ROOT / "requirements.lock").read_text("utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    locked = pins("\n".join(entry.split(" \\")[0] for entry in entries))
    wanted = pins((ROOT / "constraints.txt").read_text("utf-8"))
    assert locked == {name: version for name, version in wanted.items() if name not in NOT_LOCKED}
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert "://" not in text


def test_licences_of_all_packages_are_listed() -> None:
    text = (ROOT / "docs" / "licences.md").read_text("utf-8")
    missing = [name for name in pins((ROOT / "constraints.txt").read_text("utf-8")) if f"| {name} |" not in text]
    assert missing == [], "list the licence that the package declares in docs/licences.md"
