"""Files that users name: published whole, through links and to devices too; rejected before work where they cannot be."""

import os
from pathlib import Path

import pytest

from adagp.core.files import append_to, check_output_file, publish
from adagp.errors import OptionError, RunError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_symlinks_are_followed_and_permissions_kept(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "it.csv", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    publish(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path / "there") == ["it.csv"]


def test_new_files_have_default_permissions(tmp_path: Path) -> None:
    publish(tmp_path / "new", b"")
    (tmp_path / "plain").touch()
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_devices_can_be_written_to() -> None:
    publish(Path(os.devnull), b"nothing is kept")
    assert not Path(os.devnull).is_file()
    with pytest.raises(OSError, match="No space left"):
        publish(Path("/dev/full"), b"no place")


def test_outputs_are_checked_before_work_and_leave_no_files(tmp_path: Path) -> None:
    check_output_file(tmp_path / "new.csv")
    (tmp_path / "old.csv").write_text("old")
    check_output_file(tmp_path / "old.csv")
    os.mkfifo(tmp_path / "pipe")
    check_output_file(tmp_path / "pipe")  # nobody reads it: opening it would wait
    assert names(tmp_path) == ["old.csv", "pipe"]
    assert (tmp_path / "old.csv").read_text() == "old"


def test_unwritable_outputs_are_rejected(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 252)  # it would fit, but not the name under which it is written
    with pytest.raises(OptionError, match=r"^cannot write '.*': File name too long\.$"):
        check_output_file(long)
    with pytest.raises(OptionError, match="there is no folder"):
        check_output_file(tmp_path / "none" / "it.csv")
    with pytest.raises(OptionError, match="it is a folder"):
        check_output_file(tmp_path, "plot to")


def test_appending_to_a_file_that_is_as_expected(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    assert append_to(path, b"two\n", 4)
    assert path.read_bytes() == b"one\ntwo\n"
    assert not append_to(path, b"three\n", 4)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "none", "."):
        assert not append_to(tmp_path / name, b"three\n", 8)
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_full_disk_leaves_the_lines_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    write = os.write

    def fill(descriptor: int, content: memoryview) -> int:
        if len(content) < 4:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:2])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(RunError, match=r"^cannot write '.*lines': No space left on device\.$"):
        append_to(path, b"two\n", 4)
    assert path.read_bytes() == b"one\n"
