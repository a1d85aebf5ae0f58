"""Models of timm, torchvision and transformers from training to the report: train, resume, report, simulate."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.models.build import BUILDERS
from adagp.program.run.config import LIBRARIES

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]  # the libraries have much to say

Program = Callable[..., Any]
GPT = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64}
RUNS: dict[str, tuple[str, ...]] = {
    "timm:test_resnet": ("--method", "adagp"),
    "torchvision:shufflenet_v2_x0_5": ("--method", "dni_labels"),
    "hf:gpt.json": ("--method", "feedback", "--dataset", "persuasion", "--sequence-length", "16"),
}


@pytest.mark.parametrize("model", RUNS)
def test_a_run_is_trained_resumed_reported_and_simulated(program: Program, model: str) -> None:
    Path("gpt.json").write_text(json.dumps(GPT))
    length = ("--batches", "4", "--warmup-batches", "2", "--ratio", "1:1", "--batch-size", "8")
    ended = program("train", "--model", model, *length, *RUNS[model], "--out", "run", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["batches"]["gp"] == 1
    weights = torch.load("run/model.pt", weights_only=True)
    Path("run/summary.json").unlink()  # as if it had been killed before its end
    resumed = program("train", "--resume", "run")
    assert resumed.code == 0, resumed.err
    again = torch.load("run/model.pt", weights_only=True)
    assert weights.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    ended = program("report", "run", "--out", "report.html")
    assert ended.code == 0, ended.err
    assert model in Path("report.html").read_text()
    ended = program("simulate", "--from-run", "run", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)


def test_all_libraries_are_known_where_code_is_admitted() -> None:
    assert set(LIBRARIES) == BUILDERS.keys()
