"""Run folders and data that anybody may have written: every command answers with 0 or with 2 and a sentence."""

import io
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.crash_points import run_here
from tests.damage import altered, damaged
from tests.fuzzing import fuzzed
from tests.marks import slow
from tests.time_limit import time_limit

from adagp.cli import main
from adagp.program.reproduce.experiment import EXPERIMENTS, Workspace
from adagp.program.reproduce.verdict import Verdict

pytestmark = pytest.mark.medium

few = fuzzed(25, slow=40)
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


@pytest.fixture
def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs the program and rejects anything but an answer: exit code and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "evil.py").write_text(EVIL)

    def run(*words: str | Path) -> tuple[int, str]:
        capsys.readouterr()
        with time_limit(), pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        error = capsys.readouterr().err
        assert ended.value.code in (0, 2), error
        assert ended.value.code == 0 or re.search("(?m)^(error|Usage): ", error), error
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


STRANGE: dict[str, Callable[[Path], Any]] = {
    "pipe": make_pipe,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "deep": lambda path: path.write_bytes(b"[" * 200_000),
    "binary": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "empty": lambda path: path.write_bytes(b""),
}
FILES = ("config.json", "summary.json", "versions.json", "metrics.jsonl", "checkpoint.pt")
PAIRS = [
    (name, kind) if (place + other) % 5 == 0 else slow(name, kind)
    for place, name in enumerate(FILES)
    for other, kind in enumerate(STRANGE)
]
"""`make test` takes every file and every kind of thing at least once."""


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_strange_things_in_the_place_of_files(whole: Path, answer: Any, name: str, kind: str) -> None:
    path = copied(whole) / name
    path.unlink()
    STRANGE[kind](path)
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


COMPARE = ["compare", "--methods", "bp,skip@1:1", "--seeds", "1", "--batches", "4", "--warmup-batches", "1"]
COMPARE += ["--batch-size", "700", "--width", "0.25", "--large-batch", "700", "--points", "1", "--rounds", "1"]
COMPARE += ["--jobs", "1", "--out", "compared"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which there is a finished comparison."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("adagp.program.compare.work.run_jobs", run_here)
        with pytest.raises(SystemExit) as ended:
            main(COMPARE)
    assert ended.value.code == 0
    return folder / "compared"


@few
@given(st.data())
def test_files_of_a_comparison(
    compared: Path, answer: Any, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr("adagp.program.compare.work.run_jobs", nothing_new)
    monkeypatch.setattr("adagp.program.compare.workflow.draw_pareto", lambda *_: [])
    shutil.rmtree("compared", ignore_errors=True)
    shutil.copytree(compared, "compared")
    kept = (
        "comparison.json",
        "timing.json",
        "calibration.json",
        "tuning.json",
        "alignment/*.json",
        "runs/*/summary.json",
    )
    spoil(Path("compared"), kept, data)
    answer(*COMPARE)


@few
@given(st.data())
def test_files_of_a_reproduction(answer: Any, monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    name, workspace = "adagp-figure20", Workspace(Path("reproduced"))
    shutil.rmtree(workspace.out, ignore_errors=True)
    (workspace.out / "parts").mkdir(parents=True)
    (workspace.out / "reproduce.json").write_text('{"budget": "quick", "source": "x"}')
    (workspace.out / "adagp-table2").mkdir()
    verdict = Verdict("all", "measured", "holds", "no reason", published=1.0, ours=2.0)
    (workspace.out / "adagp-table2" / "verdict.json").write_text(json.dumps([asdict(verdict)]))
    speedups = {one: {"low": 1.5, "efficient": 1.6, "max": 1.65} for one in ("gpipe", "dapple", "chimera")}
    for part in EXPERIMENTS[name].parts("quick"):
        workspace.result_file(part).write_text(json.dumps({"result": speedups}))
    monkeypatch.setattr("adagp.program.reproduce.study.run_jobs", nothing_new)
    monkeypatch.setattr("adagp.program.reproduce.experiment.save", lambda *_: None)
    spoil(workspace.out, ("reproduce.json", "parts/*vgg13*.json", "adagp-table2/verdict.json"), data)
    answer("reproduce", name, "--jobs", "1", "--out", workspace.out)


def nothing_new(jobs: Any, at_once: int, observer: Any, *more: Any, **options: Any) -> list[object]:
    """Stand for the jobs, which are done; whatever work a file asks for, it is not what is tried here."""
    if not all(job.done for job in jobs):
        raise SystemExit(0)
    return []


def spoil(folder: Path, patterns: Sequence[str], data: st.DataObject) -> None:
    """Change one of the JSON files somewhere inside, or its bytes, or put something else into its place."""
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    path = data.draw(st.sampled_from(paths))
    content = path.read_bytes()
    path.write_bytes(
        json.dumps(data.draw(altered(json.loads(content)))).encode()
        if data.draw(st.booleans())
        else data.draw(damaged(content))
    )
