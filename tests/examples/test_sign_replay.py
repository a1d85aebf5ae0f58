"""The paper of docs/guides/add-a-paper.md, as a plug-in: trained with, simulated and reproduced by its own commands."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "sign_replay"
GUIDE = (ROOT / "docs" / "guides" / "add-a-paper.md").read_text("utf-8")
COMMANDS = dict(re.findall(r"^adagp ((\w+) .*--plugin examples\.sign_replay.*)$", GUIDE, re.MULTILINE))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, python: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that runs the guide's command for a subcommand, with more words, and returns its output."""
    monkeypatch.chdir(ROOT)  # plug-ins are imported from the current folder, too

    def run(command: str, *more: object) -> str:
        (line,) = [line for line, name in COMMANDS.items() if name == command]
        ended = python("-m", "adagp", *line.split(), *more)
        assert ended.returncode == 0, ended.stderr
        return str(ended.stdout)

    return run


def test_a_paper_is_one_folder_of_at_most_200_lines() -> None:
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in FOLDER.iterdir() if path.is_file()}
    assert {"source.py", "hardware.py", "experiments.py", "published.toml", "CARD.md"} < lines.keys()
    assert sum(lines.values()) <= 200
    assert f"has {sum(lines.values())} lines" in GUIDE
    assert all(f"`{name}`" in GUIDE for name in lines)


@pytest.mark.medium
def test_it_trains(run: Callable[..., str], tmp_path: Path) -> None:
    summary = json.loads(run("train", "--width", "0.25", "--batch-size", "128", "--out", tmp_path / "run", "--json"))
    assert summary["batches"]["gp"] > 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["magnitude"] == 1.0


@pytest.mark.medium
def test_its_cost_is_simulated(run: Callable[..., str]) -> None:
    designs = json.loads(run("simulate", "--ratio", "1:1", "--json"))
    replay = json.loads(run("simulate", "--ratio", "1:1", "--method", "replay", "--json"))
    assert designs != replay


@pytest.mark.slow
def test_it_is_reproduced(run: Callable[..., str], tmp_path: Path) -> None:
    run("reproduce", "--out", tmp_path / "out")
    verdicts = json.loads((tmp_path / "out" / "sign-replay-bits" / "verdict.json").read_text())
    assert [verdicts[0][name] for name in ("quantity", "verdict", "published")] == ["kept for VGG13", "within", 1.0]
    assert verdicts[0]["ours"] == pytest.approx(1.0, abs=0.001)
    assert verdicts[1]["claim"] == "replaying signs trains as accurately as replaying the whole gradient"
