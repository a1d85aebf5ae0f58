"""Each plugin of the examples by the command that its file and the README give, in a process of its own."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.marks import slow

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "examples" / "plugins"
README = (PLUGINS / "README.md").read_text("utf-8")
NAMES = sorted(path.stem for path in PLUGINS.glob("*.py"))
SHORT = "--epochs 2 --width 0.25 --batch-size 128 --warmup 0"
ADDED = {
    "damped_replay": SHORT,
    "sparse_backprop": SHORT,
    "patch_mixer": SHORT,
    "sine_regression": "--warmup 1",
    "perfect_dataflow": "--input 3x32x32",
    "breadth_first": "",
}
"""What is added to each command to make it short."""


def command(name: str) -> str:
    """Return what the README writes after `adagp` for a plugin."""
    (found,) = re.findall(rf"^adagp (.*--plugin examples\.plugins\.{name}\b.*?)\s*(?:#.*)?$", README, re.MULTILINE)
    return str(found)


def test_every_plugin_is_tested() -> None:
    assert sorted(ADDED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_file_and_the_readme_give_the_same_command(name: str) -> None:
    assert f"adagp {command(name)}" in (PLUGINS / f"{name}.py").read_text("utf-8")


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", [slow(name) if name in ("damped_replay", "patch_mixer", "sparse_backprop") else name for name in NAMES]
)
def test_plugin_command_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Callable[..., Any]
) -> None:
    monkeypatch.chdir(ROOT)  # where plugins are looked for, as users' modules are
    words = [*command(name).split(), *ADDED[name].split(), "--json"]
    training = words[0] == "train"
    ended = python("-m", "adagp", *words, *(["--out", tmp_path / "run"] if training else []))
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    if not training:
        assert ({"perfect_dataflow": "perfect", "breadth_first": "breadth-first"}[name]) in ended.stdout
        return
    assert document["batches"]["gp"] + document["batches"]["guarded"] > 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["plugins"] == [f"examples.plugins.{name}"]
    expected = {
        "damped_replay": ("damping", 0.7),
        "sparse_backprop": ("ratio", "every:4"),
        "patch_mixer": ("model", "patch_mixer"),
        "sine_regression": ("dataset", "sine"),
    }
    option, value = expected[name]
    assert config[option] == value
