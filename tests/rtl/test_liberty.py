"""Liberty files: the logic of cells is parsed, never substituted; whatever a file holds, the answer is a sentence."""

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from tests.damage import damaged
from tests.fuzzing import fuzzed
from tests.marks import slow
from tests.time_limit import time_limit

from adagp.errors import OptionError, ToolError
from adagp.rtl.liberty import LONGEST_FUNCTION, read_cells, truth_table
from adagp.rtl.tools import LIMITS, run

LIBRARY = """
library (tiny) {
  /* a comment */
  cell (AND) { area : 2; pin (A) { direction : input; capacitance : 2; } pin (B) { direction : input; }
    pin (Y) { direction : output; max_capacitance : 40; function : "FUNCTION"; } }
  cell (DFF) { area : 5; ff (NAMES) { clocked_on : "CLK"; next_state : "D"; }
    pin (D) { direction : input; capacitance : 2; } pin (CLK) { direction : input; capacitance : 3; }
    pin (Q) { direction : output; function : "IQ"; } pin (QN) { direction : output; function : "IQN"; } }
}
"""


def library(function: str = "A & B", names: str = "IQ, IQN") -> str:
    return LIBRARY.replace("FUNCTION", function).replace("NAMES", names)


def test_the_inverse_of_a_state_is_written_out() -> None:
    cells = read_cells(library())
    assert cells["AND"].functions == {"Y": "A & B"}
    assert cells["DFF"].functions == {"Q": "IQ", "QN": "(!IQ)"}
    assert truth_table("(!IQ)", ("IQ",)) == 0b01


@pytest.mark.parametrize("inverse", ["(a|a)*b", "[", "A+", "\\\\1", "IQN IQN2"])
def test_names_of_a_file_are_no_regular_expressions(inverse: str) -> None:
    read_cells(library(names=f'IQ, "{inverse}"'))


@pytest.mark.parametrize("function", ["A &", "(A", "A)", "", "A ! B !", "' A", "A | | B"])
def test_a_function_that_cannot_be_read_is_named(function: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_cells(library(function))
    assert str(caught.value) == (
        f"the function '{function}' of the cell 'AND' cannot be read; it must be made of pins, 0, 1, brackets and "
        "! ' & * | + ^."
    )


def test_limits_of_functions() -> None:
    long = " & ".join(["A"] * LONGEST_FUNCTION)
    for function in (long, "(" * 5000 + "A" + ")" * 5000, "!" * 5000 + "A"):
        with pytest.raises(OptionError, match="^a function of the cell 'AND' is too long, or nested too deeply.$"):
            read_cells(library(function))
    wide = " & ".join(f"P{number}" for number in range(40))
    with pytest.raises(OptionError, match="^a function of the cell 'AND' has 40 inputs; at most 16 are allowed.$"):
        read_cells(library(wide))


def test_a_cell_whose_function_is_not_of_its_pins_is_left_out() -> None:
    assert "AND" not in read_cells(library("A & elsewhere"))


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "-1", "1e300"])
def test_numbers_out_of_range_are_named(value: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_cells(library().replace("area : 2", f"area : {value}"))
    assert str(caught.value) == f"area of the cell 'AND' is '{value}'; it must be a number from 0 to 1e+18."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no library."),
        ("library (a) { /* ", "it has a comment that does not end."),
        ("library (a { cell", "the bracket behind 'library' does not end."),
    ],
)
def test_what_is_no_liberty_file(text: str, reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_cells(text)
    assert str(caught.value) == f"this is not a Liberty file: {reason}"


@pytest.mark.parametrize("examples", [100, slow(2000)])
def test_damaged_files_end_in_a_sentence(examples: int) -> None:
    @fuzzed(examples)
    @given(damaged(library().encode()))
    def check(content: bytes) -> None:
        with time_limit(), suppress(OptionError):
            read_cells(content.decode("latin-1"))

    check()


def test_tools_are_limited(tmp_path: Path) -> None:
    printed = run(["sh", "-c", "sleep 0.5; ulimit -t; ulimit -f; ulimit -n"], tmp_path)
    time, _, files = map(int, printed.split())
    assert time <= LIMITS.seconds + 5
    assert files <= LIMITS.files


def test_what_a_tool_says_about_a_file_is_one_sentence(tmp_path: Path) -> None:
    printed = "Running\nError: no library\n" + "x\n" * 20 + "ERROR: Syntax error on line 5.\n  End"
    with pytest.raises(ToolError) as caught:
        run([sys.executable, "-c", f"print({printed!r}); raise SystemExit(3)"], tmp_path, name="Yosys")
    assert str(caught.value) == "Yosys ended with code 3: Error: no library ERROR: Syntax error on line 5. End"
    with pytest.raises(ToolError, match=r"ended with code 3: it printed nothing\.$"):
        run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
