"""A command that is killed before any of its file operations can be repeated or resumed, and ends as if nothing had been."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("scenario", "every"), [("train", 1), ("force", 3), ("compare", 7), ("reproduce", 20)])
def test_points_recover(scenario: str, every: int, python: Callable[..., Any]) -> None:
    """All points of a run; of the others, which take minutes, some: `python -m tests.crash_points SCENARIO` does all."""
    done = python("-m", "tests.crash_points", scenario, str(every))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["points"]) > 3
    assert found["expected"] != found["before"]
    for point in found["points"]:
        assert point["code"] == 0, point
        # Before --force has deleted anything, the old run is still there, whole.
        kept = scenario == "force" and point["way"] == "resume" and point["result"] == found["before"]
        assert kept or point["result"] == found["expected"], point
