"""Plugins: what is taken from a command line, and what cannot be loaded."""

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from adagp.core.registry import load_installed_plugins, loaded_plugins, take_plugins
from adagp.errors import OptionError


@pytest.fixture(autouse=True)
def users_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_plugin.py").write_text("LOADED = True\n")
    (tmp_path / "users_broken_plugin.py").write_text("raise ValueError('out of order')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("adagp.core.registry._loaded", [])
    yield
    sys.modules.pop("users_plugin", None)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--plugin", "users_plugin", "--epochs", "3"],
        ["--plugin=users_plugin", "train", "--epochs", "3"],
        ["train", "--epochs", "3", "--plugin", "users_plugin", "--plugin", "users_plugin"],
    ],
)
def test_the_plugin_option_may_be_anywhere(words: list[str]) -> None:
    assert take_plugins(words) == ["train", "--epochs", "3"]
    assert loaded_plugins() == ["users_plugin"]
    assert sys.modules["users_plugin"].LOADED


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--plugin"], "--plugin needs the name of a module: --plugin package.module."),
        (["--plugin="], "--plugin needs the name of a module: --plugin package.module."),
        (["--plugin", "users_broken_plugin"], "cannot load the plugin 'users_broken_plugin': ValueError: out of order"),
        (["--plugin", "nobody"], "cannot load the plugin 'nobody': ModuleNotFoundError: No module named 'nobody'"),
    ],
)
def test_plugins_that_do_not_load_are_rejected(words: list[str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        take_plugins(words)
    assert str(caught.value) == message
    assert loaded_plugins() == []


def test_entry_points_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint("mine", "users_plugin", "adagp"),
        metadata.EntryPoint("bad", "users_broken_plugin", "adagp"),
    ]

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.syspath_prepend(".")
    with pytest.raises(OptionError) as caught:
        load_installed_plugins()
    assert str(caught.value) == (
        "cannot load the installed plugin 'bad' (users_broken_plugin): ValueError: out of order"
    )
    assert sys.modules["users_plugin"].LOADED


@pytest.mark.medium
def test_an_installed_package_needs_no_option(tmp_path: Path, python: Callable[..., Any]) -> None:
    """A package with an entry point, as pip would leave it behind, in a process of its own."""
    information = tmp_path / "mine-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[adagp]\nmine = mine_plugin\n")
    (tmp_path / "mine_plugin.py").write_text("from adagp.hw import DATAFLOWS\nDATAFLOWS.add('mine', DATAFLOWS['ws'])\n")
    ended = python("-m", "adagp", "simulate", "vgg13", "--dataflow", "nobody")
    assert ended.stderr == "error: unknown dataflow 'nobody'. Choose from: is, mine, os, rs, ws.\n"
