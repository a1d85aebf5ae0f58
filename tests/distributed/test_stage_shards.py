"""Pipelines whose stages' weights are spread over their copies, against one process."""

from typing import Any

import pytest
from tests.distributed.test_pipelines import SPEAKER, check
from tests.distributed.test_session import LIVELY, assert_equal, rows, weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("fsdp=2,pipeline=2", {"method": "bp", "ratio": None, "warmup_batches": None}),
        ("fsdp=2,pipeline=2", {}),
        ("fsdp=2,pipeline:interleaved=2", {"method": "feedback"}),
        ("fsdp=2,pipeline:gpipe=2", {"method": "zero"}),
        ("fsdp=2,pipeline=2", {"runtime": "torch", "method": "feedback"}),
        ("fsdp=2,pipeline:zb-v=2", {"runtime": "torch"}),
    ],
)
def test_spread_stages_train_as_one_process(parallel: str, options: dict[str, Any], start: Any, alone: Any) -> None:
    check(start, alone, parallel, **{"lr": 0.02, **options})
