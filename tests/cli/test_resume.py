"""`adagp train --resume`: what it refuses. That it goes on exactly is tested with the training loop."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

Program = Callable[..., Any]


def error(program: Program, *arguments: str | Path) -> str:
    ended = program("train", "--resume", *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    message: str = ended.err.removeprefix("error: ").removesuffix("\n")
    return message


def test_a_finished_run_tells_its_result_again(program: Program, finished: Path) -> None:
    ended = program("train", "--resume", finished, "--json")
    assert ended.code == 0
    assert json.loads(ended.out) == json.loads((finished / "summary.json").read_text())


def test_unchanged_options_may_be_repeated(program: Program, finished: Path, short: tuple[str, ...]) -> None:
    assert program("train", "--resume", finished, *short).code == 0


def test_changed_options_are_named(program: Program, finished: Path) -> None:
    before = (finished / "summary.json").read_bytes()
    message = error(program, finished, "--lr", "0.5", "--epochs", "2", "--method", "bp", "--normalize")
    assert message == (
        f"the run in '{finished}' was begun with other options: method (was adagp, now bp), lr (was 0.001, now 0.5), "
        "normalize (was False, now True). Resume it without them, or start a new run with --out."
    )
    assert (finished / "summary.json").read_bytes() == before


def test_changed_options_in_a_configuration_file_are_named(program: Program, finished: Path) -> None:
    Path("run.toml").write_text("epochs = 5\nbatch-size = 256\n")
    assert error(program, finished, "--config", "run.toml") == (
        f"the run in '{finished}' was begun with other options: epochs (was 2, now 5). "
        "Resume it without them, or start a new run with --out."
    )


def test_unknown_options_in_a_configuration_file_are_refused(program: Program, finished: Path) -> None:
    Path("run.toml").write_text("epoch = 2\n")
    assert error(program, finished, "--config", "run.toml").startswith(
        "run.toml: unknown option 'epoch'. Did you mean 'epochs'? "
    )


def test_a_run_without_a_checkpoint(program: Program, finished: Path) -> None:
    (finished / "checkpoint.pt").unlink()
    assert error(program, finished) == (
        f"there is no checkpoint at '{finished / 'checkpoint.pt'}' yet: nothing to resume."
    )


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """Change one bit in the middle, where the numbers of some tensor are."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "File is not a zip file"),
        (lambda content: b"", "File is not a zip file"),
        (lambda content: b"not a checkpoint at all", "File is not a zip file"),
        (flip, "wrong checksum of "),
    ],
)
def test_a_damaged_checkpoint(program: Program, finished: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    path = finished / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    assert error(program, finished).startswith(
        f"cannot read the checkpoint '{path}': it is damaged or not a checkpoint ({reason}"
    )


class Harmful:
    """What a foreign file could try: a call of its choice while it is being read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


def test_a_foreign_checkpoint_runs_no_code(program: Program, finished: Path) -> None:
    path = finished / "checkpoint.pt"
    torch.save({"format": 1, "model": Harmful()}, path)
    assert error(program, finished).startswith(
        f"cannot read the checkpoint '{path}': it is damaged or not a checkpoint ("
    )
    assert not Path("harm").exists()
    torch.load(path, weights_only=False)
    assert Path("harm").exists()  # it would have


def test_a_checkpoint_of_another_kind(program: Program, finished: Path) -> None:
    path = finished / "checkpoint.pt"
    for content in ({"weights": torch.zeros(2)}, [1, 2], {"format": 0}):
        torch.save(content, path)
        assert error(program, finished) == f"'{path}' is not an adagp checkpoint of format 1."


def test_a_checkpoint_that_does_not_fit(program: Program, finished: Path) -> None:
    path = finished / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    del state["trainer"]
    torch.save(state, path)
    assert error(program, finished) == (
        f"the checkpoint '{path}' does not fit this run; was the model changed since? (KeyError: 'trainer')"
    )


def test_a_model_that_was_changed_since(
    program: Program, short: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from torch import nn\ndef build(width):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias={}))\n"
    )
    Path("changing_model.py").write_text(source.format("True"))
    assert program("train", *short, "--model", "changing_model:build", "--out", "run").code == 0
    Path("changing_model.py").write_text(source.format("False"))
    monkeypatch.delitem(sys.modules, "changing_model")  # as in a new process
    message = error(program, "run")
    assert message.startswith(
        "the checkpoint 'run/checkpoint.pt' does not fit this run; was the model changed since? ("
    )
    assert "1.bias" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read '{path}': Expecting property name enclosed in double quotes"),
        ("[1]", "'{path}' does not hold a configuration."),
        ('{"epochs": "2"}', "{path}: option 'epochs' is '2'; it must be of type int."),
    ],
)
def test_a_damaged_configuration(program: Program, finished: Path, text: str, message: str) -> None:
    path = finished / "config.json"
    path.write_text(text)
    assert error(program, finished).startswith(message.replace("{path}", str(path)))
