"""The examples run as they stand, and do what they say."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PROOFS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "own_loop.py": (r"test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.85),
    "own_source.py": (r"last batch: (?:gp|bp), loss ([\d.]+)", lambda loss: loss < 0.01),
}
"""What the last line of each example says, and what its number must be like."""


def test_every_example_has_a_proof() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PROOFS)


@pytest.mark.parametrize("name", PROOFS)
def test_it_runs_and_learns(name: str, python: Callable[..., Any]) -> None:
    ended = python("-W", "error", EXAMPLES / name)
    assert ended.stderr == ""
    assert ended.returncode == 0
    line, is_good = PROOFS[name]
    found = re.fullmatch(line, ended.stdout.splitlines()[-1])
    assert found is not None
    assert is_good(float(found[1]))
