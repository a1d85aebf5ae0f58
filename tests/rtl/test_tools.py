"""The cache of builds: what lies in it is loaded into the process, so nothing foreign or damaged may pass."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from tests.damage import damaged
from tests.fuzzing import fuzzed
from tests.marks import slow

from adagp.errors import ToolError
from adagp.rtl.tools import CONTENTS, cached_folder, run

REFUSED = "and is not used: libraries in it would be run. Delete it, or set ADAGP_CACHE to another folder."


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of builds, which is not there yet; ADAGP_CACHE is relative."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAGP_CACHE", "cache")
    return tmp_path / "cache" / "rtl"


def entry(calls: list[str], text: str = "library") -> Path:
    def make(work: Path) -> None:
        calls.append(text)
        (work / "chip.so").write_text(text)
        (work / "notes.txt").write_text("notes")

    return cached_folder("simulator-1", make)


def test_an_entry_is_made_once_in_a_private_folder(cache: Path) -> None:
    calls: list[str] = []
    assert [entry(calls), entry(calls)] == [cache / "simulator-1"] * 2
    assert calls == ["library"]
    assert [oct(path.stat().st_mode & 0o777) for path in (cache, cache / "simulator-1")] == ["0o700", "0o700"]
    assert [path.name for path in cache.iterdir()] == ["simulator-1"]


def digests_of_another_entry(folder: Path) -> None:
    contents = json.loads((folder / CONTENTS).read_text())
    (folder / CONTENTS).write_text(json.dumps(contents | {"made of": "simulator-2"}))


def replaced_by_a_link(folder: Path) -> None:
    (folder.parent.parent / "elsewhere").mkdir()
    for path in folder.iterdir():
        path.rename(folder.parent.parent / "elsewhere" / path.name)
    folder.rmdir()
    folder.symlink_to(folder.parent.parent / "elsewhere")


def library_that_is_a_link(folder: Path) -> None:
    (folder / "chip.so").unlink()
    (folder / "chip.so").symlink_to("notes.txt")


def replaced_by_a_file(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.touch()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a changed library": lambda folder: (folder / "chip.so").write_text("evil"),
    "a cut off library": lambda folder: (folder / "chip.so").write_text("lib"),
    "a missing library": lambda folder: (folder / "chip.so").rename(folder.parent.parent / "chip.so"),
    "another file": lambda folder: (folder / "evil.so").write_text("evil"),
    "a library that is a link": library_that_is_a_link,
    "no digests": lambda folder: (folder / CONTENTS).rename(folder.parent.parent / CONTENTS),
    "digests that are not JSON": lambda folder: (folder / CONTENTS).write_text("{" * 5000),
    "digests of another entry": digests_of_another_entry,
    "a link": replaced_by_a_link,
    "a file": replaced_by_a_file,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_entry_that_is_not_what_was_written_is_made_again(cache: Path, damage: str) -> None:
    calls: list[str] = []
    folder = entry(calls)
    DAMAGE[damage](folder)
    assert (entry(calls) / "chip.so").read_text() == "library"
    assert calls == ["library"] * 2
    assert sorted(path.name for path in folder.iterdir()) == ["chip.so", CONTENTS, "notes.txt"]
    assert [path.name for path in cache.iterdir()] == ["simulator-1"]


def test_a_cache_that_others_may_write_to_is_not_used(cache: Path) -> None:
    calls: list[str] = []
    entry(calls)
    cache.chmod(0o755)
    entry(calls)
    assert oct(cache.stat().st_mode & 0o777) == "0o700"
    cache.chmod(0o770)
    with pytest.raises(ToolError) as caught:
        entry(calls)
    assert str(caught.value) == f"others may write to the cache '{cache}', {REFUSED.replace('and is', 'and it is')}"
    cache.chmod(0o700)
    cache.rename(cache.with_name("moved"))
    cache.symlink_to(cache.with_name("moved"))
    with pytest.raises(ToolError) as caught:
        entry(calls)
    assert str(caught.value) == f"the cache '{cache}' is a link or belongs to another user, {REFUSED}"
    assert calls == ["library"]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_another_user_is_not_used(cache: Path) -> None:
    entry([])
    os.chown(cache, 12345, 12345)
    with pytest.raises(ToolError, match="is a link or belongs to another user, and is not used"):
        entry([])


@pytest.mark.parametrize("examples", [20, slow(300)])
@pytest.mark.parametrize("name", ["chip.so", CONTENTS])
def test_no_damage_to_an_entry_passes(cache: Path, name: str, examples: int) -> None:
    whole = (entry([]) / name).read_bytes()

    @fuzzed(examples)
    @given(damaged(whole))
    def check(content: bytes) -> None:
        calls: list[str] = []
        (cache / "simulator-1" / name).write_bytes(content)
        assert (entry(calls) / "chip.so").read_text() == "library"
        assert bool(calls) == (content != whole) or name == CONTENTS

    check()


@pytest.mark.skipif(sys.platform != "linux", reason="the request is the Linux kernel's")
def test_a_tool_ends_with_the_program_that_called_it(tmp_path: Path) -> None:
    tool = "import os, time; print(os.getpid(), file=open('id', 'w'), flush=True); time.sleep(60)"
    imports = "import sys; from pathlib import Path; from adagp.rtl.tools import run"
    caller = f"{imports}; run([sys.executable, '-c', {tool!r}], Path())"
    with subprocess.Popen([sys.executable, "-c", caller], cwd=tmp_path) as process:
        while not (tmp_path / "id").is_file() or not (tmp_path / "id").read_text():
            time.sleep(0.05)
            assert process.poll() is None
        process.terminate()
    tool_id = int((tmp_path / "id").read_text())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{tool_id}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{tool_id}").exists()


def test_what_a_tool_printed_is_returned(tmp_path: Path) -> None:
    assert run([sys.executable, "-c", "print('done')"], tmp_path) == "done\n"
