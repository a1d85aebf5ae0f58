import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adagp.core.files import write_atomically
from adagp.errors import RunError
from adagp.program.run.folder import (
    FILES,
    LOCK,
    STARTING,
    RunFolder,
    hold,
    is_held,
    locked,
    release,
    to_json,
    unused_path,
)

ROWS: list[dict[str, Any]] = [
    {"epoch": 0, "loss": 2.5, "batches": {"bp": 3, "gp": 0}, "sites": {"stem": {"mse": 0.5, "cosine": None}}},
    {"epoch": 1, "loss": 1.5, "batches": {"bp": 1, "gp": 2}, "sites": {"stem": {"mse": 0.25, "cosine": 0.5}}},
]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


def names(path: Path) -> list[str]:
    """Return the files of a folder; the lock is none of them."""
    return sorted(entry.name for entry in path.iterdir() if entry.name != LOCK)


def test_create_makes_an_empty_folder_and_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    folder = RunFolder.create(path, {"lr": 1})
    assert folder.path == path
    assert names(path) == [STARTING]
    assert not folder.begun
    folder.begin()
    assert names(path) == ["config.json"]
    assert folder.read_json("config.json") == {"lr": 1}


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    for name in (".config.json.tmp", "..starting.json.tmp", LOCK):  # what a killed process may leave
        (tmp_path / name).touch()
    assert RunFolder.create(tmp_path).path == tmp_path


def test_a_start_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {"lr": 1}).write_json("versions.json", {})
    with pytest.raises(RunError) as caught:
        RunFolder.open(tmp_path)
    assert str(caught.value) == (
        f"the run in '{tmp_path}' was interrupted before it had begun: there is nothing to continue. "
        "Give the command that starts it again."
    )
    RunFolder.create(tmp_path, {"lr": 2}).begin()
    assert names(tmp_path) == ["config.json"]
    assert RunFolder.open(tmp_path).read_json("config.json") == {"lr": 2}


def test_a_replacement_that_was_interrupted_before_it_deleted_anything_leaves_the_old_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / STARTING).write_text('{"lr": 2}')
    with pytest.raises(RunError, match="holds a run already"):
        RunFolder.create(tmp_path)
    assert RunFolder.claim(tmp_path).read_json("config.json") == {}
    assert names(tmp_path) == ["config.json"]


def test_an_existing_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError) as caught:
        RunFolder.create(tmp_path)
    assert str(caught.value) == (
        f"'{tmp_path}' holds a run already. Give another --out, --resume {tmp_path} to continue it, "
        "or --force to delete it and start again."
    )
    assert names(tmp_path) == ["config.json"]


def test_force_deletes_the_files_of_the_run_and_no_others(tmp_path: Path) -> None:
    for name in (*FILES, "notes.txt"):
        (tmp_path / name).write_text("{}")
    RunFolder.create(tmp_path, force=True)
    assert names(tmp_path) == [STARTING, "notes.txt"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_holds_no_run_is_never_taken(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError) as caught:
        RunFolder.create(tmp_path, force=force)
    assert str(caught.value) == f"'{tmp_path}' holds files that are not a run (thesis.tex, ...); give another --out."
    assert names(tmp_path) == ["thesis.tex"]


def test_a_path_that_cannot_be_a_folder_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, reason in ((file, "File exists"), (file / "below", "Not a directory")):
        with pytest.raises(RunError) as caught:
            RunFolder.create(path)
        assert str(caught.value) == f"cannot write the run folder '{path}': {reason}."


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_without_permission_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError) as caught:
        RunFolder.create(tmp_path)
    assert str(caught.value) == f"cannot write the run folder '{tmp_path}': Permission denied."


def test_open_wants_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        RunFolder.open(tmp_path)
    assert str(caught.value) == f"'{tmp_path}' is not a run folder: it has no config.json."
    (tmp_path / "config.json").write_text("{}")
    folder = RunFolder.open(tmp_path)
    assert folder.checkpoint == tmp_path / "checkpoint.pt"
    assert folder.weights == tmp_path / "model.pt"


def test_json_files_come_back(folder: RunFolder) -> None:
    folder.write_json("notes.json", {"a": [1, None]})
    assert folder.read_json("notes.json") == {"a": [1, None]}
    assert (folder.path / "notes.json").read_text() == '{\n  "a": [\n    1,\n    null\n  ]\n}\n'


def test_broken_json_is_rejected(folder: RunFolder) -> None:
    path = folder.path / "config.json"
    path.write_text("{")
    with pytest.raises(RunError) as caught:
        folder.read_json("config.json")
    assert str(caught.value).startswith(f"cannot read '{path}': it is not JSON (Expecting property name")
    with pytest.raises(RunError) as caught:
        folder.read_json("summary.json")
    assert str(caught.value) == f"cannot read '{folder.path / 'summary.json'}': there is no such file."


def test_numbers_that_json_cannot_say_become_null() -> None:
    content = {"a": float("nan"), "b": [float("inf"), 1.5, (float("-inf"), 2)], "c": {"d": True}}
    assert to_json(content) == '{"a": null, "b": [null, 1.5, [null, 2]], "c": {"d": true}}'


def test_rows_come_back(folder: RunFolder) -> None:
    assert folder.rows() == []
    folder.write_rows(ROWS)
    assert folder.rows() == ROWS
    folder.write_rows(ROWS[:1])
    assert folder.rows() == ROWS[:1]


def test_rows_are_written_as_two_tables_too(folder: RunFolder) -> None:
    folder.write_rows(ROWS)
    assert (folder.path / "metrics.csv").read_text() == "epoch,loss,batches.bp,batches.gp\n0,2.5,3,0\n1,1.5,1,2\n"
    assert (folder.path / "sites.csv").read_text() == "epoch,site,mse,cosine\n0,stem,0.5,\n1,stem,0.25,0.5\n"


def test_columns_that_come_later_are_empty_before(folder: RunFolder) -> None:
    folder.write_rows([{"epoch": 0, "sites": {}}, {"epoch": 1, "gp": 4, "sites": {}}])
    assert (folder.path / "metrics.csv").read_text() == "epoch,gp\n0,\n1,4\n"


def test_epochs_are_appended_and_give_the_same_files_as_all_at_once(folder: RunFolder, tmp_path: Path) -> None:
    """New columns come with the second and the fourth epoch, no site with the third."""
    sites = [{"stem": {"mse": 0.5}}, {"stem": {"mse": 0.25, "cosine": 0.5}}, {}, {"stem": {"mse": 1.0}, "\ud800": {}}]
    rows = [
        {"epoch": epoch, "loss": 0.1 * epoch, "sites": sites[epoch % 4], **({"gp": epoch} if epoch > 3 else {})}
        for epoch in range(8)
    ]
    inodes = []
    for count in range(len(rows) + 1):
        folder.write_rows(rows[:count])
        whole = RunFolder(tmp_path / f"whole-{count}")
        whole.path.mkdir()
        whole.write_rows(rows[:count])
        for name in ("metrics.jsonl", "metrics.csv", "sites.csv"):
            assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes()
        inodes.append([(folder.path / name).stat().st_ino for name in ("metrics.jsonl", "metrics.csv", "sites.csv")])
    assert len({lines for lines, _, _ in inodes}) == 1  # never written again
    assert inodes[5] == inodes[8]  # nor are the tables, once they have all their columns


def test_files_of_metrics_that_somebody_has_changed_are_written_whole(folder: RunFolder, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    path = folder.path / "metrics.jsonl"
    whole = "".join(f"{json.dumps(row)}\n" for row in ROWS)

    def cut() -> None:
        path.write_text(path.read_text()[:-3])

    def link() -> None:
        path.unlink()
        path.symlink_to(other)

    for change in (cut, link, path.unlink):
        folder.write_rows(ROWS[:1])
        change()
        folder.write_rows(ROWS)
        assert not path.is_symlink()
        assert path.read_text() == whole
    assert other.read_text() == "precious"


def test_a_last_line_that_was_cut_off_is_left_out(folder: RunFolder) -> None:
    folder.write_rows(ROWS)
    path = folder.path / "metrics.jsonl"
    whole = path.read_text()
    second = whole.index("\n") + 1
    for length in range(second, len(whole)):
        path.write_text(whole[:length])
        complete = length == len(whole) - 1  # only the end of the line is missing
        assert folder.rows() == (ROWS if complete else ROWS[:1])


def test_a_damaged_line_before_the_last_is_rejected(folder: RunFolder) -> None:
    path = folder.path / "metrics.jsonl"
    path.write_text(f'{json.dumps(ROWS[0])}\n{{"epoch"\n{json.dumps(ROWS[1])}\n')
    with pytest.raises(RunError) as caught:
        folder.rows()
    assert str(caught.value).startswith(f"line 2 of '{path}' is damaged: it is not JSON (")


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with path.open("rb") as before:
        write_atomically(path, b"new and longer")
        assert before.read() == b"old"  # a reader of the old file is not disturbed
    assert path.read_bytes() == b"new and longer"
    assert names(tmp_path) == ["file"]


def test_what_lies_under_the_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("mine")
    (tmp_path / ".file.tmp").symlink_to(tmp_path / "diary")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "diary").read_text() == "mine"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(number: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="^cannot write '.*/file': the disk is full.$"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_unused_paths_are_numbered(tmp_path: Path) -> None:
    base = tmp_path / "run"
    found = []
    for _ in range(3):
        path = unused_path(base)
        path.mkdir()
        found.append(path.name)
    assert found == ["run", "run-2", "run-3"]


TRY = """
import sys
from pathlib import Path
from adagp.errors import RunError
from adagp.program.run.folder import hold
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
        rejected = f"another process (process {os.getpid()}) is using '{tmp_path}'; wait for it, or end it first.\n"
        assert attempt() == rejected
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
    monkeypatch.setattr("adagp.program.run.folder._KERNEL_LOCKS", tmp_path / "none")
    assert is_held(tmp_path)  # all that is known elsewhere: the process that was the last lives
    (tmp_path / LOCK).write_text("x")
    assert not is_held(tmp_path)
