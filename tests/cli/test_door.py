"""Every value that a command could not work with: exit code 2 and one sentence, before any work."""

import inspect
import math
import os
import zipfile
from collections.abc import Callable, Container, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.models import ArgumentInfo

from adagp.cli import COMMANDS, load_command
from adagp.cli.options import own_options
from adagp.cli.rtl import COMMANDS as RTL_COMMANDS
from adagp.core.options import Option
from adagp.program.run.record import MOST_THREADS

Program = Callable[..., Any]


def rejection(program: Program, *arguments: str | Path) -> str:
    """Run the program, see it reject and write nothing, and return what it said."""
    before = sorted(Path().rglob("*"))
    ended = program(*arguments)
    assert (ended.code, ended.out) == (2, ""), ended
    assert sorted(Path().rglob("*")) == before, "nothing was written"
    return str(ended.err).removeprefix("error: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --checkpoint-seconds nan", "--checkpoint-seconds is nan; it must be a finite number."),
        ("train --checkpoint-seconds -1", "--checkpoint-seconds is -1.0; it must be 0 or more."),
        ("train --vocabulary -1", "--vocabulary is -1; it must be 1 or more."),
        ("train --device meta", "device 'meta' cannot be used here: it computes nothing. Try cpu."),
        ("train --device cpu:99", "device 'cpu:99' cannot be used here: there is one CPU device only. Try cpu."),
        ("train --width 1e9", "--width is 1000000000.0; it must be at most 1000."),
        ("train --lr 1e39", "--lr is 1e+39; it must be at most 3e+38, so that it fits single precision."),
        ("train --epochs 1000000000000", "--epochs is 1000000000000; it must be at most 1,000,000,000."),
        ("train --threads 100000", f"--threads is 100000; it must be at most {MOST_THREADS}."),
        ("train --threads 0", "--threads is 0; it must be 1 or more."),
        (
            "train --method remap --remap-outputs 1000000000000",
            "--remap-outputs is 1000000000000; it must be at most 1000000.",
        ),
        (
            "train --ratio 99999999999:1",
            "cannot read the schedule '99999999999:1...'; it may have at most 10,000 characters, and numbers of at most 9 "
            "digits.",
        ),
        ("train --config /dev/zero", "cannot read the configuration file '/dev/zero': it is not a file."),
        ("simulate vgg13 --clock inf", "--clock is inf; it must be a finite number."),
        ("simulate vgg13 --buffer inf", "--buffer is inf; it must be a finite number."),
        (
            "simulate vgg13 --bandwidth 1e-300",
            "--bandwidth is 1e-300; it must be 0.000001 to 1,000,000,000 (gigabytes), or inf.",
        ),
        (
            "simulate vgg13 --epochs 1000000000",
            "--epochs is 1000000000; it must be 1 to 100,000, since they are counted one by one.",
        ),
        ("simulate vgg13 --samples 1000000000000", "--samples is 1000000000000; it must be at most 1,000,000,000."),
        (
            "simulate vgg13 --array 65536x65536",
            "array 65536x65536 is not allowed: it has more than 1,000,000 PEs.",
        ),
        (
            "sweep --arrays 12x15,9999999x9999999",
            "array 9999999x9999999 is not allowed: it has more than 1,000,000 PEs.",
        ),
        ("models --classes 0", "--classes is 0; it must be 2 to 1,000,000."),
        ("models --width inf", "--width is inf; it must be a finite number."),
        ("pipeline --devices 100000", "--devices is 100000; it must be at most 4096."),
        (
            "pipeline --micro-batches 1000000000",
            "a pipeline of 4 devices, 1,000,000,000 micro-batches and 2 batches has up to 16,000,000,008 actions; "
            "at most 200,000 are allowed.",
        ),
        (
            "pipeline --devices 100 --micro-batches 100 --plot it.svg",
            "a pipeline of 30,200 actions cannot be drawn; at most 20,000 can. Leave out --plot.",
        ),
        ("compare --seconds nan", "--seconds is nan; it must be a finite number."),
        ("compare --jobs 0", "--jobs is 0; it must be 1 or more."),
        ("reproduce all --jobs -3", "--jobs is -3; it must be 1 or more."),
        ("demo --seeds 1000000", "--seeds is 1000000; it must be at most 10000."),
        # Outputs.
        ("sweep --out none/it.csv", "cannot write 'none/it.csv': there is no folder 'none'."),
        ("sweep --out .", "cannot write '.': it is a folder."),
        ("sweep --plot none/it.svg", "cannot plot to 'none/it.svg': there is no folder 'none'."),
        ("simulate vgg13 --save-workload none/it.json", "cannot write 'none/it.json': there is no folder 'none'."),
        ("report . --out none/it.html", "cannot write the report to 'none/it.html': there is no folder 'none'."),
        ("plot . --out /dev/null/it", "cannot write to the folder '/dev/null/it': '/dev/null' is not a folder."),
        ("compare --out /dev/null", "cannot write to the folder '/dev/null': '/dev/null' is not a folder."),
        ("reproduce all --out /dev/null/it", "cannot write to the folder '/dev/null/it': '/dev/null' is not a folder."),
        ("demo --out /dev/null", "cannot write to the folder '/dev/null': '/dev/null' is not a folder."),
    ],
)
def test_values_that_are_rejected(program: Program, line: str, message: str) -> None:
    assert rejection(program, *line.split()) == message


def test_long_and_empty_texts_are_rejected(program: Program) -> None:
    assert rejection(program, "train", "--ratio", "").startswith("cannot read the schedule ''. Allowed forms: ladder, ")
    phases = ",".join(["GP"] * 30_000)
    assert rejection(program, "pipeline", "--phases", phases) == (
        "a pipeline of 4 devices, 4 micro-batches and 30,000 batches has up to 1,080,000 actions; "
        "at most 200,000 are allowed."
    )
    assert rejection(program, "sweep", "--out", "x" * 300) == f"cannot write '{'x' * 300}': File name too long."
    assert rejection(program, "plot", ".", "--out", "x" * 300) == (
        f"cannot write to the folder '{'x' * 300}': File name too long."
    )


def test_program_files_have_a_limit(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("huge.txt").open("wb") as file:
        file.truncate(2**30)
    assert rejection(program, "pipeline", "--schedule", "huge.txt") == (
        "cannot read the schedule 'huge.txt': it has 1,073,741,824 bytes; at most 67,108,864 are allowed."
    )
    Path("wide.txt").write_text("it: 1 micro-batches, phases GP, 999999999 stages per device\n0F0\n")
    assert "2,999,999,997 actions; at most 200,000" in rejection(program, "pipeline", "--schedule", "wide.txt")
    os.mkfifo("pipe.txt")
    assert rejection(program, "pipeline", "--schedule", "pipe.txt") == (
        "cannot read the schedule 'pipe.txt': it is not a file."
    )


def _save(path: str, **changes: Any) -> None:
    images, labels = np.zeros((8, 8, 8), np.uint8), np.arange(8) % 2
    arrays: dict[str, Any] = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels, **changes}
    np.savez(path, **arrays)


def test_labels_far_beyond_any_class(program: Program) -> None:
    _save("far.npz", y_test=np.array([0, 1, 0, 1, 0, 1, 0, 10**8]))
    assert rejection(program, "train", "--dataset", "far.npz") == (
        "far.npz: a label is 100000000; without class names labels run to 99999 at most."
    )


@pytest.mark.parametrize("count", [312_500_000, 15_625_000_000_000])
def test_arrays_that_claim_more_than_there_is(program: Program, count: int) -> None:
    """20 GB and 1 PB: the header of an array is read before it is allocated."""
    _save("good.npz")
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, 8, 8), }}".ljust(117) + "\n"
    with zipfile.ZipFile("good.npz") as good, zipfile.ZipFile("bad.npz", "w") as bad:
        for name in good.namelist():
            content = good.read(name)
            if name == "x_train.npy":
                content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content[-512:]
            bad.writestr(name, content)
    size = 10 + len(header) + 512
    assert rejection(program, "train", "--dataset", "bad.npz") == (
        f"bad.npz: x_train claims shape ({count}, 8, 8) and dtype uint8, {64 * count:,} bytes, but the archive holds {size}."
    )


def test_a_model_that_does_not_fit_into_memory(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagp.core.memory.free_memory", lambda: 10**9)
    assert rejection(program, "train", "--width", "1000") == (
        "model 'digits_cnn' with 10 classes and width 1000 needs 55.3 GB of memory; 1.0 GB are free."
    )


LOADED: dict[str, tuple[Any, Sequence[Option]]] = {name: load_command(name) for name in COMMANDS if name != "rtl"}
LOADED.update({f"rtl {command.__name__}": (command, ()) for command in RTL_COMMANDS})
ALL_COMMANDS: dict[str, Callable[..., None]] = {name: command for name, (command, _) in LOADED.items()}
OPTIONS = {
    f"{name} {option.flag}": option
    for name, (command, more) in LOADED.items()
    for option in (*own_options(command).values(), *more)
}


def is_declared(parameter: inspect.Parameter, declared: Container[str]) -> bool:
    """Return whether a parameter is an option, or an argument without a number that would have to be checked."""
    if parameter.name == "overrides" or is_dataclass(parameter.annotation) or parameter.name in declared:
        return True
    kind, details = get_args(parameter.annotation)
    return isinstance(details, ArgumentInfo) and not {kind, *get_args(kind)} & {int, float}


def test_every_parameter_of_a_command_declares_its_option() -> None:
    """So that it is checked before the command begins; arguments are names and paths."""
    undeclared = [
        f"{name} {parameter.name}"
        for name, command in ALL_COMMANDS.items()
        for parameter in inspect.signature(command).parameters.values()
        if not is_declared(parameter, own_options(command))
    ]
    assert undeclared == []


def complaint(option: Option, value: Any) -> str:
    """Return what the check of an option says of a value, nothing if it is allowed."""
    try:
        option.check(value)
    except ValueError as error:
        return str(error)
    return ""


def test_no_range_allows_huge_or_undefined_numbers() -> None:
    values = {float: (math.nan, -math.inf), int: (10**30, -(10**30))}
    numbers = [(name, option) for name, option in OPTIONS.items() if option.kind in values]
    assert len(numbers) > 150
    allowed = [
        f"{name} {value}"
        for name, option in numbers
        for value in values[option.kind]
        if not complaint(option, value).startswith(f"{option.flag} is ")
    ]
    assert allowed == []


def test_every_default_is_allowed() -> None:
    assert len(OPTIONS) > 300
    assert {name: text for name, option in OPTIONS.items() if (text := complaint(option, option.default))} == {}
