import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.run.lock import LOCK, hold, is_held, locked, release

TRY = """
import sys
from pathlib import Path
from adagp.errors import RunError
from adagp.program.run.lock import hold
try:
    hold(Path(sys.argv[1]))
except RunError as error:
    print(error)
"""


def test_one_process_at_a_time(tmp_path: Path, python: Callable[..., Any]) -> None:
    def attempt() -> str:
        text: str = python("-c", TRY, tmp_path).stdout
        return text

    with locked(tmp_path):
        hold(tmp_path)  # it is ours
        refused = f"another process (process {os.getpid()}) is at work in '{tmp_path}'; wait for it, or end it first.\n"
        assert attempt() == refused
    assert attempt() == ""
    hold(tmp_path)  # the other process is over, and its lock with it
    release(tmp_path)
    release(tmp_path)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_whatever_a_foreign_folder_has_in_its_place_does_no_harm(tmp_path: Path, kind: str) -> None:
    diary = tmp_path / "diary"
    diary.write_text("mine")
    place = tmp_path / "run" / LOCK
    place.parent.mkdir()
    if kind == "link":
        place.symlink_to(diary)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    if kind == "pipe":
        with locked(place.parent):
            pass
    else:
        with pytest.raises(RunError, match="^cannot lock the folder '.*/run': .*\\.$"):
            hold(place.parent)
    assert diary.read_text() == "mine"


def test_whether_a_folder_is_held_is_told_without_a_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_held(tmp_path)
    with locked(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)  # the file is still there
    monkeypatch.setattr("adagp.program.run.lock._KERNEL_LOCKS", tmp_path / "none")
    assert is_held(tmp_path)  # all that is known elsewhere: the process that was the last lives
    (tmp_path / LOCK).write_text("x")
    assert not is_held(tmp_path)
