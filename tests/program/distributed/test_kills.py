"""Processes that are killed at random moments. Twenty of them: `python -m tests.program.distributed.kills 20`."""

from pathlib import Path

import pytest
from tests.program.distributed.kills import kill_some

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["data", "pipeline:chimera"])
def test_a_run_survives_a_kill_at_any_moment(kind: str, nets: Path) -> None:
    (kill,) = kill_some(1, [kind])
    assert kill.equal
