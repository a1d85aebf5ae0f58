"""`adagp train --resume`: what it rejects. That it goes on exactly is tested with the training loop."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagp.program.run.record import MOST_THREADS
from adagp.program.train.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.medium

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
    assert "This run is finished: there is nothing left to train.\n" in ended.err


def test_unchanged_options_may_be_repeated(program: Program, finished: Path, short: tuple[str, ...]) -> None:
    assert program("train", "--resume", finished, *short).code == 0


def test_changed_options_are_named(program: Program, finished: Path) -> None:
    before = (finished / "summary.json").read_bytes()
    message = error(program, finished, "--lr", "0.5", "--epochs", "2", "--method", "bp", "--normalize")
    assert message == (
        f"the run in '{finished}' was started with other options: method (was feedback, now bp), lr (was 0.001, "
        "now 0.5), normalize (was None, now True). Resume it without them, or start a new run with --out."
    )
    assert (finished / "summary.json").read_bytes() == before


def test_changed_options_in_a_configuration_file_are_named(program: Program, finished: Path) -> None:
    Path("run.toml").write_text("epochs = 5\nbatch-size = 256\n")
    assert error(program, finished, "--config", "run.toml") == (
        f"the run in '{finished}' was started with other options: epochs (was 2, now 5). "
        "Resume it without them, or start a new run with --out."
    )


def test_unknown_options_in_a_configuration_file_are_rejected(program: Program, finished: Path) -> None:
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
        assert error(program, finished) == f"'{path}' is not an adagp checkpoint of format 1 or 2."


def test_a_checkpoint_that_does_not_fit(program: Program, finished: Path) -> None:
    path = finished / "checkpoint.pt"
    state = load_checkpoint(path)
    del state["trainer"]
    save_checkpoint(path, state)
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
    message = error(program, "run", "--trust")
    assert message.startswith(
        "the checkpoint 'run/checkpoint.pt' does not fit this run; was the model changed since? ("
    )
    assert "1.bias" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read '{path}': it is not JSON (Expecting property name enclosed in double quotes"),
        ("[1]", "cannot read '{path}': it holds [1]; it must be a table."),
        ('{"epochs": "2"}', "{path}: option 'epochs' is '2'; it must be of type int."),
    ],
)
def test_a_damaged_configuration(program: Program, finished: Path, text: str, message: str) -> None:
    path = finished / "config.json"
    path.write_text(text)
    assert error(program, finished).startswith(message.replace("{path}", str(path)))


def test_an_edited_configuration_is_named(program: Program, finished: Path) -> None:
    path = finished / "config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"batch_size": 128, "lr_scheduler": "none"}))
    assert error(program, finished) == (
        f"the run in '{finished}' was started with other options than its config.json has now: batch_size (was 256, now 128), "
        "lr_scheduler (was plateau, now none). Restore them, or start a new run with --out."
    )
    path.write_text(json.dumps({name: value for name, value in saved.items() if name not in ("normalize", "width")}))
    assert error(program, finished).startswith(
        f"the run in '{finished}' was started with other options than its config.json has now: width (was 0.25, now 1.0). "
    )


def test_an_option_that_came_later_had_its_default(program: Program, finished: Path) -> None:
    """As a run folder of an older version has it: neither config.json nor the checkpoint knows the option."""
    path, checkpoint = finished / "config.json", finished / "checkpoint.pt"
    saved = json.loads(path.read_text())
    del saved["guard_limit"]
    path.write_text(json.dumps(saved))
    state = load_checkpoint(checkpoint)
    del state["origin"]["options"]["guard_limit"]
    save_checkpoint(checkpoint, state)
    assert program("train", "--resume", finished).code == 0
    path.write_text(json.dumps(saved | {"guard_limit": 7.0}))
    assert "guard_limit (was 10.0, now 7.0)" in error(program, finished)


def write_images(train: int, shade: int = 0) -> None:
    generator = np.random.default_rng(0)
    pixels = {"x_train": generator.integers(0, 200, (train, 8, 8), np.uint8) + np.uint8(shade)}
    pixels["x_test"] = pixels["x_train"][:20]
    labels = {"y_train": np.arange(train) % 10, "y_test": np.arange(20) % 10}
    np.savez("images.npz", **pixels, **labels)  # type: ignore[arg-type]  # by name


def test_data_that_changed_since_are_named(program: Program, short: tuple[str, ...]) -> None:
    write_images(600)
    assert program("train", *short, "--dataset", "images.npz", "--batch-size", "100", "--out", "run").code == 0
    write_images(250)
    message = error(program, "run")
    assert message.startswith(
        "the run in 'run' was started with other data: train samples (was 600, now 250), train digest (was "
    )
    assert message.endswith("Restore it, or start a new run with --out.")
    write_images(600, shade=1)
    assert error(program, "run").startswith("the run in 'run' was started with other data: train digest (was ")
    write_images(50)
    assert error(program, "run") == ("batch size 100 is larger than the training set of 50 samples; choose 1 to 50.")
    write_images(600)
    assert program("train", "--resume", "run").code == 0


def test_metrics_that_got_lost_are_noticed(program: Program, finished: Path) -> None:
    path = finished / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text(lines[1] + "\n")
    assert error(program, finished) == (
        f"'{path}' does not have one line for each of the 2 epochs before the checkpoint: the run is damaged."
    )
    row = json.loads(lines[0])
    del row["batches"]
    path.write_text(json.dumps(row) + "\n" + lines[1] + "\n")
    assert error(program, finished) == f"line 1 of '{path}' is damaged: 'batches' is missing."


EVIL = """
from pathlib import Path
Path("harm").touch()
def build(*arguments, **options):
    raise AssertionError
class Source:
    produce = build
"""


@pytest.mark.parametrize(
    ("option", "value"), [("model", "evil:build"), ("method", "evil:Source"), ("plugins", ["evil"])]
)
def test_code_that_a_folder_names_is_not_run(program: Program, finished: Path, option: str, value: Any) -> None:
    Path("evil.py").write_text(EVIL)
    path = finished / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {option: value}))
    flag, name = f"--{option.removesuffix('s')}", value if isinstance(value, str) else value[0]
    sentence = (
        f"error: the run in '{finished}' would run code that it names itself: {flag} {name}. If you trust that code, "
        f"give {flag} {name} as well, or --trust.\n"
    )
    for words in (("train", "--resume", finished), ("simulate", "--from-run", finished), ("simulate", finished)):
        ended = program(*words)
        assert (ended.code, ended.err) == (2, sentence)
    for words in (("report", finished), ("plot", finished)):
        assert program(*words).code == 0
    assert not Path("harm").exists()
    if option == "model":
        assert program("train", "--resume", finished, flag, name).code == 2
        assert Path("harm").exists()  # named by the user, it is


def test_two_processes_do_not_share_a_run(program: Program, finished: Path, python: Callable[..., Any]) -> None:
    from adagp.program.run.folder import locked

    with locked(finished):
        ended = python("-m", "adagp", "train", "--resume", finished)
        assert ended.returncode == 2
        assert ended.stderr.startswith("error: another process (process ")
        assert ended.stderr.endswith(f"is using '{finished}'; wait for it, or end it first.\n")
    assert program("train", "--resume", finished).code == 0


def test_a_resumed_run_has_the_recorded_number_of_threads(program: Program, short: tuple[str, ...]) -> None:
    """The tests have one thread; the run is started with two."""
    try:
        assert program("train", *short, "--threads", "2", "--out", "run").code == 0
        assert json.loads(Path("run/config.json").read_text())["threads"] == 2
        command = json.loads(Path("run/summary.json").read_text())["command"]
        assert command.endswith(" --threads 2")
        torch.set_num_threads(1)
        ended = program("train", "--resume", "run")
        assert torch.get_num_threads() == 2
        assert ended.err.startswith("CPU threads: 2, as recorded in the run.\n")
        assert json.loads(Path("run/summary.json").read_text())["command"] == command
        ended = program("train", "--resume", "run")
        assert "CPU threads" not in ended.err
        ended = program("train", "--resume", "run", "--threads", "1")
        assert torch.get_num_threads() == 1
        assert ended.err.startswith("The run was started with 2 CPU threads; with 1 its results differ by rounding.\n")
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        (0, "cannot read '{path}/config.json': 'threads' is 0; it must be a whole number from 1 on."),
        ("x", "cannot read '{path}/config.json': 'threads' is \"x\"; it must be a whole number from 1 on."),
        (
            10**6,
            "the run in '{path}' was started with 1000000 CPU threads; at most {most} are possible here. "
            "Give --threads; results then differ by rounding.",
        ),
    ],
)
def test_recorded_threads_that_cannot_be_used(program: Program, finished: Path, threads: Any, message: str) -> None:
    path = finished / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": threads}))
    assert error(program, finished) == message.format(path=finished, most=MOST_THREADS)


def test_a_restart_count_that_is_no_number(
    program: Program, short: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "x")
    ended = program("train", *short, "--out", "run")
    assert (ended.code, ended.err) == (
        2,
        "error: the environment variable TORCHELASTIC_RESTART_COUNT is 'x'; it must be a whole number.\n",
    )


@pytest.mark.parametrize(("table", "name"), [("batches", "warmup"), ("seconds", "warmup"), ("", "sites")])
def test_metrics_in_which_something_is_missing(program: Program, finished: Path, table: str, name: str) -> None:
    path = finished / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del (rows[0][table] if table else rows[0])[name]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    missing = f"{table}.{name}" if table else name
    assert error(program, finished) == f"line 1 of '{path}' is damaged: '{missing}' is missing."
    if table == "batches":
        ended = program("simulate", "--from-run", finished)
        assert (ended.code, ended.err) == (
            2,
            f"error: the run in '{finished}' is damaged: in epoch 1, 'warmup' is not among its batches.\n",
        )
