"""A command that is killed before any of its file operations can be repeated or resumed, and ends as if nothing had been."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", ["train", "force", "compare", "reproduce"])
def test_every_point_recovers(scenario: str, python: Callable[..., Any]) -> None:
    done = python("-m", "tests.crash_points", scenario)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["points"]) > 15
    assert found["expected"] != found["before"]
    for point in found["points"]:
        assert point["code"] == 0, point
        # Before --force has deleted anything, the old run is still there, whole.
        kept = scenario == "force" and point["way"] == "resume" and point["result"] == found["before"]
        assert kept or point["result"] == found["expected"], point
