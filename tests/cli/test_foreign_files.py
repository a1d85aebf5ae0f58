"""Run folders and data that anybody may have written: every command answers with 0 or with 2 and a sentence."""

import io
import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adagp.cli import main

pytestmark = pytest.mark.slow

LONGEST = 30
"""Seconds that a command may take."""
few = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["evil:build", "[/]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
EVIL = "open('harm', 'w').close()\ndef build(**options):\n    raise AssertionError\n"


@contextmanager
def limited() -> Iterator[None]:
    """Fail what takes too long."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"not done after {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs the program and refuses anything but an answer: exit code and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "evil.py").write_text(EVIL)

    def run(*words: str | Path) -> tuple[int, str]:
        capsys.readouterr()
        with limited(), pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        error = capsys.readouterr().err
        assert ended.value.code in (0, 2), error
        assert ended.value.code == 0 or error.startswith(("error: ", "Usage: ")), error
        assert "Traceback" not in error
        assert not Path("harm").exists(), "it imported what a file names"
        return int(ended.value.code or 0), error

    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    words = ["train", "--width", "0.25", "--batch-size", "400", "--epochs", "2", "--warmup", "1", "--ratio", "1:1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--out", str(folder)])
    assert ended.value.code == 0
    return folder


def copied(whole: Path) -> Path:
    """Return a fresh copy of the run."""
    shutil.rmtree("run", ignore_errors=True)
    return Path(shutil.copytree(whole, "run"))


def ask_about(answer: Callable[..., tuple[int, str]], folder: Path) -> None:
    """Ask every command that reads run folders."""
    for words in (("simulate", "--from-run"), ("plot",), ("report",), ("train", "--resume")):
        answer(*words, folder, *(("--threads", "1") if words[0] == "train" else ()))


@few
@given(
    st.sampled_from(["config.json", "summary.json", "versions.json", "metrics.jsonl"]),
    st.data(),
    st.sampled_from(["value", "entry", "bytes", "cut"]),
)
def test_files_of_a_run(whole: Path, answer: Any, name: str, data: st.DataObject, way: str) -> None:
    folder = copied(whole)
    path = folder / name
    content = path.read_bytes()
    if way == "value":
        content = json.dumps(data.draw(JSON_VALUES)).encode()
    elif way == "entry":
        lines = content.splitlines() if name == "metrics.jsonl" else [content]
        table = json.loads(lines[0])
        table[data.draw(st.sampled_from(sorted(table)))] = data.draw(JSON_VALUES)
        content = b"\n".join([json.dumps(table).encode(), *lines[1:]])
    elif way == "bytes":
        content = data.draw(st.binary(max_size=40))
    else:
        content = content[: data.draw(st.integers(0, len(content)))]
    path.write_bytes(content)
    ask_about(answer, folder)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["config.json", "summary.json", "versions.json", "metrics.jsonl", "checkpoint.pt"])
@pytest.mark.parametrize(
    "make",
    [
        make_pipe,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: path.write_bytes(b"[" * 200_000),
        lambda path: path.write_bytes(b"\xff\xfe\0"),
        lambda path: path.write_bytes(b""),
    ],
    ids=["pipe", "folder", "device", "loop", "deep", "binary", "empty"],
)
def test_strange_things_in_the_place_of_files(whole: Path, answer: Any, name: str, make: Callable[[Path], Any]) -> None:
    path = copied(whole) / name
    path.unlink()
    make(path)
    ask_about(answer, path.parent)


@few
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3))
def test_checkpoints(whole: Path, answer: Any, changes: list[tuple[float, int]]) -> None:
    path = copied(whole) / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    for place, change in changes:
        content[int(place * len(content))] ^= change
    path.write_bytes(content)
    answer("train", "--resume", path.parent, "--threads", "1")
    assert (path.parent / "model.pt").read_bytes() == (whole / "model.pt").read_bytes()


def header(shape: str, kind: str = "|u1") -> bytes:
    """Return the beginning of an array file that claims a shape, with little behind it."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


@few
@given(
    st.dictionaries(
        st.sampled_from(["x_train", "y_train", "x_test", "y_test", "class_names"]),
        st.binary(max_size=60) | st.sampled_from([header("(-1,)"), header("()", "|O"), header("(9,)", "<i8")]),
        min_size=1,
    )
)
def test_data_sets(answer: Any, parts: dict[str, bytes]) -> None:
    arrays: dict[str, Any] = {"x_train": np.zeros((40, 8, 8), np.uint8), "y_train": np.arange(40) % 4}
    arrays |= {"x_test": np.zeros((4, 8, 8), np.uint8), "y_test": np.arange(4)}
    with zipfile.ZipFile("data.npz", "w") as archive:
        for name in [*arrays, *(part for part in parts if part not in arrays)]:
            buffer = io.BytesIO()
            if name in arrays:
                np.save(buffer, arrays[name])
            archive.writestr(f"{name}.npy", parts.get(name, buffer.getvalue()))
    words = ("--width", "0.25", "--batch-size", "20", "--epochs", "1", "--method", "bp", "--threads", "1", "--force")
    answer("train", "--dataset", "data.npz", *words, "--out", "trained")
