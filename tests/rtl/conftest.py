"""Simulated chips that tests share: one for each number format, each of another shape; one of them with pipeline stages."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import Blueprint, make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.simulation import SimulatedChip, simulate_chip

ARRAYS = {"int8": Array(4, 4), "int16": Array(2, 5), "bf16": Array(3, 2), "fp16": Array(2, 2), "fp32": Array(2, 3)}
STAGED = "bf16 staged"


def small_blueprint(name: str) -> Blueprint:
    words: dict[str, Any] = {"value_words": 1024, "sum_words": 16384, "program_words": 8}
    number = name.removesuffix(" staged")
    return make_blueprint("baseline", ARRAYS[number], FORMATS[number], stages=int(name != number), **words)


@pytest.fixture(scope="session")
def chip_of() -> Iterator[Callable[[str], SimulatedChip]]:
    """Return a function from a format's name, or STAGED, to its chip, which is built once."""
    chips: dict[str, SimulatedChip] = {}

    def find(name: str) -> SimulatedChip:
        if name not in chips:
            chips[name] = simulate_chip(small_blueprint(name))
        return chips[name]

    yield find
    for chip in chips.values():
        chip.close()


def icarus(program: str) -> str:
    """Return a program of Icarus Verilog; without it the test is skipped, or fails where tools are required."""
    found = shutil.which(program)
    if found is None:
        if os.environ.get("ADAGP_RTL_TEST") == "required":
            pytest.fail("Icarus Verilog is not installed")
        pytest.skip("needs Icarus Verilog")
    return found
