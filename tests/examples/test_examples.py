"""The examples run as they stand, and do what they say."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import slow
from torch import nn

from adagp.layers.sites import survey

pytestmark = pytest.mark.medium

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "accelerate_loop.py": (r"test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.85),
    "lightning_loop.py": (r"test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.85),
    "transformers_loop.py": (r"test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.6),
    "own_loop.py": (r"test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.85),
    "own_source.py": (r"last batch: (?:gp|bp), loss ([-\d.e]+)", lambda loss: loss < 0.01),
}
"""The last line that each example prints, and the check of its number."""


def test_every_example_is_checked() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", [name if name.startswith("own_") else slow(name) for name in EXPECTED])
def test_example_runs_and_learns(name: str, python: Callable[..., Any]) -> None:
    ended = python("-W", "error", EXAMPLES / name)
    assert ended.stderr == ""
    assert ended.returncode == 0
    line, is_good = EXPECTED[name]
    found = re.fullmatch(line, ended.stdout.splitlines()[-1])
    assert found is not None
    assert is_good(float(found[1]))


def test_own_source_returns_copies() -> None:
    """What clipping does to a gradient in place must not change the next one."""
    spec = importlib.util.spec_from_file_location("own_source", EXAMPLES / "own_source.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    site = survey(nn.Linear(2, 2)).sites[0]
    source = module.HalfReplay()
    source.observe([site], [torch.ones(2, 2)])
    (first,) = source.produce([site])
    first.zero_()
    assert source.produce([site])[0].tolist() == [[0.5, 0.5], [0.5, 0.5]]
