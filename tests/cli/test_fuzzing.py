"""Any words on the command line: never a traceback, a hang or a signal; exit code 0 or 2.

Options come from the program's own tables, values from a list of hostile ones. Work that takes long (training, comparisons,
sweeps) is cut off where it would begin: all that lies before it is the program's own.
"""

import contextlib
import inspect
import io
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import fuzzed
from tests.marks import slow

from adagp.cli import COMMANDS, load_command, main
from adagp.cli.options import own_options

HANG_SECONDS = 30
LONG_WORK = (
    "adagp.cli.compare._run_with_progress",
    "adagp.cli.demo._compare",
    "adagp.cli.report._serve",
    "adagp.cli.reproduce._run",
    "adagp.cli.explore._grid_rows",
)
LEFT_OUT = {"--download", "--compile", "--no-compile"}
"""Options that would go to the network, or to a compiler."""
NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "nan",
    "inf",
    "-inf",
    "1e-300",
    "1e39",
    "1e400",
    "1" + "0" * 12,
    "9" * 5000,
    "0.5",
    "x",
    "",
)
TEXTS = (
    "", " ", ",", "x", "all", "[/]", "[bold]it", "[link=a]b", "a\nb", "esc\x1b[31m", "byte\udcff", "*?", "$x^{$",
    "<b>", "%s{0}", "a:b", ":", "-", "--", ".", "..", "none/it.csv", "none/it.svg", "it.svg", "it.html", "it.txt",
    "it.json", "it.npz", "/dev/null", "/dev/null/it", "/dev/full", "x" * 300, "x" * 5000, "1:1", "4:1x4,1:1", "0:0",
    "999999999:1", "sites=all", "sites=cut 1%", "adaptive:9-2", "epochs:1:1", "GP,BP", "12x15", "0x0", "99999999x9",
    "3x64x64", "digits", "digits_cnn", "vgg13", "cifar10", "adagp", "bp", "bp=1", "bp.lr=nan", "lr=1e39", "meta",
    "cpu:99", "max", "ws", "chimera", "data", "list", "fig14",
)  # fmt: skip


def flags(name: str) -> dict[str, bool]:
    """Return the options of a command by flag, and whether each takes a value."""
    command, more = load_command(name)
    assert inspect.isfunction(command)
    options = [*own_options(command).values(), *more]
    found = {flag: one.kind is not bool for one in options for flag in one.flags or (one.flag,)}
    return {flag: takes for flag, takes in found.items() if flag not in LEFT_OUT}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command with some of its options."""
    command = draw(st.sampled_from([name for name in COMMANDS if name != "rtl"]))
    words = [command]
    if command in ("models", "plot", "report", "reproduce", "simulate"):
        usual = "all" if command == "reproduce" else "digits_cnn"
        words += draw(st.lists(st.sampled_from((*TEXTS, usual, usual)), min_size=1, max_size=2))
    table = flags(command)
    for flag in draw(st.lists(st.sampled_from(sorted(table)), max_size=3, unique=True)):
        words.append(flag)
        if table[flag]:
            words.append(draw(st.sampled_from(NUMBERS) | st.sampled_from(TEXTS)))
    return words


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """An empty folder, no long work, an alarm instead of a hang; all is put back."""

    def alarm(*_: object) -> None:
        raise TimeoutError("it hangs")

    path, threads, before = list(sys.path), torch.get_num_threads(), signal.signal(signal.SIGALRM, alarm)
    signal.alarm(HANG_SECONDS)
    try:
        with contextlib.ExitStack() as stack:
            here = Path(stack.enter_context(tempfile.TemporaryDirectory()), "inner")  # so that `..` is ours as well
            here.mkdir()
            stack.enter_context(contextlib.chdir(here))
            for name in LONG_WORK:
                stack.enter_context(mock.patch(name, side_effect=SystemExit(0)))
            stack.enter_context(mock.patch("adagp.cli.progress.run_with_progress", return_value={}))
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.path[:] = path
        torch.set_num_threads(threads)


def run(words: list[str]) -> tuple[Any, str]:
    """Run the program; return its exit code and what it said on standard error."""
    said = io.BytesIO()
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict")
    err = io.TextIOWrapper(said, "utf-8", "backslashreplace")  # as Python has it
    with surroundings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.raises(SystemExit) as ended:
            main(words)
        err.flush()
    return ended.value.code, said.getvalue().decode()


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="a hang cannot be told here")
@pytest.mark.parametrize("examples", [60, slow(300)])
def test_any_command_line(examples: int) -> None:
    @fuzzed(examples)
    @given(command_lines())
    def check(words: list[str]) -> None:
        code, said = run(words)
        assert code in (0, 2), (words, said)
        assert code == 0 or said.strip(), "a rejection says why"
        assert "\x1b" not in said or not said.startswith("error: ")

    check()


def test_the_fuzzing_can_fail() -> None:
    """A defect behind the door is seen."""
    with mock.patch("adagp.cli.pipeline.read_program", side_effect=KeyError("defect")), pytest.raises(KeyError):
        run(["pipeline"])
    assert run(["pipeline"])[0] == 0
    assert flags("train")["--lr"]
    assert "--json" in flags("train")
