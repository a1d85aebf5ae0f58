"""The cache: right answers whatever state its folder is in, and fast ones when it is warm."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.marks import slow

from adagp.core import cache
from adagp.core.cache import cache_root, cached, models_folder, verified_text
from adagp.hw import Workload
from adagp.models.registry import MODELS, ModelInfo
from adagp.program.model_table import describe_models
from adagp.program.workloads import model_workload


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of this test, which is not there yet."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "models_folder", models_folder)
    return tmp_path / "cache" / "models"


class Finding:
    """Something that counts how often it was found out."""

    def __init__(self, answer: int = 42) -> None:
        self.answer = answer
        self.times = 0

    def __call__(self) -> int:
        self.times += 1
        return self.answer


def look_up(find: Callable[[], int], **key: Any) -> int:
    return cached("number", key or {"of": "it"}, find, write=str, read=int)


def test_a_cached_value_is_computed_once(folder: Path) -> None:
    find = Finding()
    assert [look_up(find) for _ in range(3)] == [42, 42, 42]
    assert find.times == 1
    assert look_up(Finding(7), of="another") == 7
    assert len(list(folder.iterdir())) == 2


def test_cache_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    assert (cache_root(), models_folder()) == (tmp_path, tmp_path / "models")
    monkeypatch.setenv(cache.VARIABLE, "")
    found = cache_root()
    assert found is not None
    assert found.name == "adagp"
    monkeypatch.setattr(
        cache, "user_cache_path", lambda *_, **__: Path("~/.cache/adagp")
    )  # what a system without homes says
    assert (cache_root(), models_folder()) == (None, None)


def test_without_a_folder_nothing_is_cached() -> None:
    find = Finding()
    assert [look_up(find), look_up(find)] == [42, 42]
    assert find.times == 2


@pytest.mark.parametrize("name", ["adagp", "source", "python", "torch", "timm"])
def test_entries_of_other_versions_are_ignored(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up(Finding(1))
    other = {**cache.program(), name: "another"}
    monkeypatch.setattr(cache, "program", lambda: other)
    assert look_up(Finding(2)) == 2
    assert look_up(Finding(3)) == 2, "it takes the place of the old one"
    assert len(list(folder.iterdir())) == 1


def damages(content: bytes) -> dict[str, bytes]:
    """Return damaged forms of an entry, one with each byte changed among them."""
    found = {f"byte {place}": content[:place] + b"7" + content[place + 1 :] for place in range(0, len(content), 5)}
    found |= {f"cut at {place}": content[:place] for place in range(0, len(content), 20)}
    return {"empty": b"", "binary": os.urandom(100), "more": content + b"0", **found}


def test_a_damaged_entry_is_recomputed(folder: Path) -> None:
    look_up(Finding())
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for how, content in damages(whole).items():
        if content != whole:
            path.write_bytes(content)
            find = Finding()
            assert (look_up(find), find.times) == (42, 1), how
            assert path.read_bytes() == whole, how


def test_pipes_and_folders_in_place_of_entries(folder: Path) -> None:
    """A pipe would never end; a folder cannot be replaced."""
    look_up(Finding())
    (path,) = folder.iterdir()
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(path)
        assert look_up(Finding(5)) == 5
    assert sorted(entry.name for entry in folder.iterdir()) == [path.name], "nothing half done is left"


@pytest.mark.parametrize("state", ["read-only", "a file", "below a file", "too long"])
def test_an_unwritable_folder_changes_no_answer(folder: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if state == "read-only":
        folder.mkdir(parents=True)
        # root may write anywhere, so the rejection is the system's answer to making a file
        monkeypatch.setattr("tempfile.mkstemp", lambda **_: (_ for _ in ()).throw(PermissionError(13, "read-only")))
    elif state == "a file":
        folder.parent.mkdir()
        folder.touch()
    elif state == "below a file":
        folder.parent.touch()
    else:
        monkeypatch.setattr(cache, "models_folder", lambda: Path("x" * 5000))
    assert [look_up(Finding(9)), look_up(Finding(9))] == [9, 9]


def test_oldest_entries_are_evicted_and_foreign_files_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_ENTRIES", 3)
    folder.mkdir(parents=True)
    (folder / "letters-to-milena.txt").write_text("not ours")
    for number in range(6):
        look_up(Finding(number), number=number)
        for path in folder.iterdir():
            os.utime(path, (path.stat().st_mtime - 10,) * 2)
    assert len(list(folder.iterdir())) == 3 + 1
    assert look_up(Finding(99), number=5) == 5
    assert look_up(Finding(99), number=0) == 99
    assert (folder / "letters-to-milena.txt").read_text() == "not ours"


def test_a_cached_workload_equals_the_traced_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"shape": (3, 16, 16), "width": 0.5, "classes": 7}
    traced = model_workload("six_conv_vgg", "cifar10", **options)
    monkeypatch.setattr("adagp.tracing.tracer.trace_model", lambda *_, **__: pytest.fail("it was traced before"))
    assert model_workload("six_conv_vgg", "cifar10", **options) == traced
    assert isinstance(traced, Workload)


def test_cached_rows_equal_measured_ones_and_depend_on_options(folder: Path) -> None:
    names = ["digits_cnn", "decoder"]
    first, again = describe_models(names), describe_models(names)
    assert first == again
    assert describe_models(["digits_cnn"], width=0.5)[0].parameters < first[0].parameters


def test_models_of_users_are_not_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code may change from one call to the next."""
    describe_models(["tests.core.test_cache:small"])
    monkeypatch.setitem(
        MODELS._things, "mine", ModelInfo("mine", "images", "mine", "me", "tests.core.test_cache:registered", (3, 8, 8))
    )
    describe_models(["mine"])
    monkeypatch.setattr("adagp.program.model_table.loaded_plugins", lambda: ["rules_of_my_own"])
    describe_models(["digits_cnn"])
    assert not folder.exists()


def small(classes: int) -> Any:
    """Return a model of one layer."""
    from torch import nn

    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))


def registered(name: str, classes: int, image: Any, width: float) -> Any:
    """Return a model of one layer, as the table of models builds them."""
    return small(classes)


LOADED = "import sys; from adagp.cli import main\ntry: main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"


@pytest.mark.medium
@pytest.mark.parametrize(
    "words", [slow(("models", "digits_cnn", "decoder")), ("simulate", "digits_cnn", "--epochs", "2")]
)
def test_commands_with_a_warm_cache_do_not_import_torch(
    folder: Path, python: Callable[..., Any], words: tuple[str, ...]
) -> None:
    """That is most of what they take."""
    code = f"import os; os.environ[{cache.VARIABLE!r}] = {str(folder.parent)!r}\n{LOADED}"
    cold, warm = (python("-c", code, *words) for _ in range(2))
    assert (cold.stderr, warm.stderr) == ("", "")
    assert cold.stdout.splitlines()[-1] == "True"
    assert warm.stdout.splitlines()[-1] == "False"
    assert warm.stdout.splitlines()[:-1] == cold.stdout.splitlines()[:-1]


def test_a_text_is_taken_from_the_cache_only_if_it_is_the_expected_one(folder: Path) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    made: list[None] = []

    def make() -> str:
        made.append(None)
        return "right"

    for _ in range(3):
        assert verified_text(digest, make) == "right"
    assert len(made) == 1
    (entry,) = folder.iterdir()
    entry.write_text("foreign")
    assert verified_text(digest, make) == "right"
    assert (len(made), entry.read_text()) == (2, "right")
    assert verified_text(hashlib.sha256(b"other").hexdigest(), make) == "right"  # of another version: not kept
    assert list(folder.iterdir()) == [entry]
