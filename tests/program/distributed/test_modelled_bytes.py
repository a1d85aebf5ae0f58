"""The bytes that the model of many chips counts, against what processes of a real run send over gloo."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.marks import slow

from adagp.core.methods import find_method
from adagp.core.plan import Phase
from adagp.hw import Accelerator
from adagp.hw.stages import SUPPLIED
from adagp.pipe.chips import ChipTraining, Fabric, ManyChips, parse_fabric, parse_parallelism
from adagp.tracing.tracer import trace

pytestmark = pytest.mark.medium


def modelled(method: str, model: Any, parallel: str, size: int) -> tuple[ManyChips, int]:
    """Return the model of a run in 32-bit words, and the numbers of sites."""
    workload = trace(model, (1, 8, 8))
    fabric = Fabric(parse_fabric("switch", size))
    source = find_method(method).source or SUPPLIED
    chips = ManyChips(
        ChipTraining(
            workload,
            Accelerator(word_bits=32),
            parse_parallelism(parallel, size),
            fabric,
            96,
            design="efficient",
            source=source,
        )
    )
    return chips, sum(layer.trainable for layer in workload.array_layers)


def compare(method: str, start: Any, size: int, runtime: str, split: str) -> None:
    """Run a training in `size` processes, and compare its bytes by kind with those of as many chips.

    A workload has no biases, so they are added. The engine itself sums a number for each site and one more in each batch.
    """
    options = {"ratio": None, "warmup": None} if method == "bp" else {}
    assert start(size, "run", runtime, check_every=0, method=method, metrics_every=0, **options) == [0] * size
    model = importlib.import_module("nets").plain(10, (1, 8, 8))
    chips, sites = modelled(method, model, split, size)
    biases = 4 * sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("bias"))
    *_, row = (json.loads(line) for line in (Path("run") / "metrics.jsonl").read_text("utf-8").splitlines())
    for phase, batch in ((Phase.BP, chips.learning), (Phase.GP, chips.predicted)):
        if not row["batches"].get(phase):
            assert method == "bp"
            continue
        sent = {kind: amount / (size * row["batches"][phase]) for kind, amount in row["sent_bytes"][phase].items()}
        assert sent.get("gradients", 0) == batch.sent.get("gradients", 0) + biases * (phase is Phase.BP)
        passes = {Phase.BP: 2, Phase.GP: 1}[phase] if runtime == "fsdp" else 0
        assert sent.get("weights", 0) == pytest.approx(batch.sent.get("weights", 0) + passes * biases / size)
        if method != "bp":
            assert sent["summaries"] == batch.sent["summaries"] + 4 * (sites + 1)


WAYS = pytest.mark.parametrize(
    ("runtime", "split"), [("data", "data={}"), ("fsdp", "data={},zero=3")], ids=["DDP", "FSDP"]
)


@pytest.mark.parametrize("method", [slow("bp"), slow("adagp"), "feedback"])
@WAYS
def test_two_processes_send_what_is_modelled(method: str, runtime: str, split: str, start: Any) -> None:
    compare(method, start, 2, runtime, split.format(2))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adagp", "feedback"])
@WAYS
def test_four_processes_send_what_is_modelled(method: str, runtime: str, split: str, start: Any) -> None:
    compare(method, start, 4, runtime, split.format(4))
