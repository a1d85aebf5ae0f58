"""A command that is killed before any of its file operations can be repeated or resumed, and ends as if nothing had been."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("sample", [2, pytest.param(None, marks=pytest.mark.slow, id="all")])
@pytest.mark.parametrize(("scenario", "least"), [("train", 50), ("force", 50), ("compare", 100), ("reproduce", 60)])
def test_recovery_from_a_kill(scenario: str, least: int, sample: int | None, python: Callable[..., Any]) -> None:
    done = python("-m", "tests.crash_points", scenario, *([] if sample is None else [str(sample)]))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["points"] >= least
    assert {one["point"][:3] for one in found["states"]} >= {f"{1:03}", f"{found['points']:03}"}
    assert found["expected"] != found["before"]
    for state in found["states"]:
        assert state["code"] == 0, state
        # Before --force has deleted anything, the old run is still there, whole.
        kept = scenario == "force" and state["way"] == "resume" and state["result"] == found["before"]
        assert kept or state["result"] == found["expected"], state
