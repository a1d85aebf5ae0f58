"""What can be synthesised for, and what is rejected."""

from pathlib import Path

import pytest

from adagp.errors import OptionError
from adagp.rtl.synthesis import Target, parse_target


def test_targets(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^unknown target 'xc8'. Choose from: xc7, liberty, liberty:FILE.$"):
        parse_target("xc8")
    with pytest.raises(OptionError, match=r"^there is no Liberty file '.*none.lib'.$"):
        parse_target(f"liberty:{tmp_path / 'none.lib'}")
    (tmp_path / "other.lib").write_text("nothing of the kind")
    with pytest.raises(OptionError, match=r"^'.*other.lib': this is not a Liberty file: it has no library.$"):
        parse_target(f"liberty:{tmp_path / 'other.lib'}")


def test_a_library_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.lib"
    path.write_text('library (own) { cell (INV) { pin (A) { direction : input; } pin (Y) { function : "!A"; } } }')
    found = parse_target(f"liberty:{path}")
    assert found == Target(path)
    assert found.name == f"liberty:{path}"
    assert found.library.startswith("library (own)")
