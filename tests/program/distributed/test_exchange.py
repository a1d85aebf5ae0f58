"""The bytes that are counted in one process, against what two real processes send."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.program.distributed.conftest import OPTIONS

from adagp.core.plan import Phase
from adagp.program.compare.exchange import count_exchange
from adagp.program.run import TrainConfig
from adagp.program.tasks.base import build_task

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_what_is_counted_is_what_processes_send(method: str, start: Any) -> None:
    options = {"method": method, "metrics_every": 0}
    assert start(2, "run", "data", check_every=0, **options) == [0, 0]
    config = TrainConfig.from_dict(OPTIONS | options | {"batches": 28}, "test", foreign="drop")
    exchange = count_exchange(config, build_task(config))
    *_, row = (json.loads(line) for line in (Path("run") / "metrics.jsonl").read_text("utf-8").splitlines())
    for phase, rounds in ((Phase.BP, exchange.backprop), (Phase.GP, exchange.predicted)):
        sent = {kind: amount / (2 * row["batches"][phase]) for kind, amount in row["sent_bytes"][phase].items()}
        assert sent.get("gradients", 0) == (exchange.gradients if phase is Phase.BP else 0)
        assert sent["summaries"] + sent["statistics"] == rounds.bytes
        assert sum(sent.values()) == exchange.bytes_of(phase)
    assert exchange.predicted.count >= 2
    assert exchange.bytes_of(Phase.GP) < exchange.bytes_of(Phase.BP)
