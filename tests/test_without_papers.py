"""The core without papers: with all folders of papers blocked, and with each of them, as if they had been deleted."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.without_papers import PAPERS as BLOCKABLE

from adagp.cli.explore import SWEPT_MODELS
from adagp.core.methods import METHODS
from adagp.hw import DESIGNS
from adagp.papers import PAPERS
from adagp.papers.adagp import PAPER_MODELS

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), "OMP_NUM_THREADS": "1"}
CORE = ("core", "layers", "schedules", "sources", "engine", "models", "data", "hw", "pipe", "rtl", "tracing")
"""Packages whose own tests pass without papers, as far as these name none."""
DEFAULT_METHOD = ("engine/test_cost.py", "engine/test_models.py", "data/test_batches.py")
"""Tests that train with the default method, which is ADA-GP's."""
NAMES = """
import json
from adagp.cli.explore import SWEPT_MODELS
from adagp.core.methods import METHODS
from adagp.hw import DESIGNS
from adagp.models import MODELS
from adagp.program.reproduce.experiment import EXPERIMENTS

for table in (MODELS, EXPERIMENTS):
    assert all(table[name] for name in table)
print(json.dumps([*METHODS, *DESIGNS]))
"""
TRAINING = """
import torch
from torch import nn

import adagp

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
trainer = adagp.attach(model, optimizer, method="replay", schedule="1:1", warmup=1, length=adagp.Epochs(3, 4))
batches = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(12)]
phases = [str(trainer.step(*batch, nn.functional.cross_entropy).phase) for batch in batches]
assert phases.count("gp") == 4, phases
"""
COMMANDS = """
from adagp.cli import main

for line in (
    "train --method bp --dataset digits --epochs 1 --width 0.25 --batch-size 256 --out bp",
    "train --method skip --warmup 0 --dataset digits --epochs 1 --width 0.25 --batch-size 256 --out skip",
    "simulate digits_cnn --method skip --design baseline",
    "methods",
    "reproduce list",
):
    try:
        main(line.split())
    except SystemExit as end:
        assert not end.code, line
"""


def run(blocked: str, *words: str, cwd: Path) -> str:
    """Run a module without some papers, and return what it prints."""
    command = [sys.executable, "-m", "tests.without_papers", blocked, *words]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def run_code(blocked: str, code: str, cwd: Path) -> str:
    """Run a program without some papers, and return what it prints."""
    (cwd / "program_of_the_test.py").write_text(code)
    return run(blocked, "program_of_the_test", cwd=cwd)


def test_the_papers_are_those_of_the_package() -> None:
    assert BLOCKABLE == PAPERS
    assert SWEPT_MODELS == PAPER_MODELS


@pytest.mark.slow
@pytest.mark.parametrize("blocked", ["all", *PAPERS])
def test_tables_engine_and_commands_work_without_papers(blocked: str, tmp_path: Path) -> None:
    printed = run_code(blocked, NAMES + TRAINING + COMMANDS, tmp_path)
    names = json.loads(printed.splitlines()[0])
    assert {"bp", "skip", "replay", "baseline"} <= set(names)
    for method in ("bp", "skip"):
        assert (tmp_path / method / "summary.json").is_file()
    folders = PAPERS if blocked == "all" else (blocked,)
    assert not re.search(rf"\b({'|'.join(folders)})-(table|figure|training|hardware|platforms)", printed)


def names_of_papers(folder: Path) -> frozenset[str]:
    """Return the methods, their sources and the designs that are not there without papers."""
    core = set(json.loads(run_code("all", NAMES, folder)))
    methods = [METHODS[name] for name in METHODS if name not in core]
    return frozenset({*(one.name for one in methods), *(one.source for one in methods), *(set(DESIGNS) - core)})


def words(text: str) -> Iterator[str]:
    """Yield the words of all strings of a program that are not sentences."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from re.split(r"[^\w-]+", node.value)


def names_a_paper(path: Path, names: frozenset[str]) -> bool:
    """Return whether a test needs a paper: its modules, its published numbers, or `names` of its methods and designs."""
    text = path.read_text("utf-8")
    if "adagp.papers" in text or "published(" in text:
        return True
    return path.parent.name != "schedules" and not names.isdisjoint(words(text))  # schedules only write the names down


@pytest.mark.slow
def test_the_cores_own_tests_pass_without_papers(tmp_path: Path) -> None:
    names = names_of_papers(tmp_path)
    tests = [path for package in CORE for path in sorted((ROOT / "tests" / package).rglob("test_*.py"))]
    chosen = [path for path in tests if not names_a_paper(path, names) and not str(path).endswith(DEFAULT_METHOD)]
    assert len(chosen) > len(tests) / 2
    run("all", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--tb=short", *map(str, chosen), cwd=ROOT)
